// Stands in for cuBLASLt in tests: the same functions, as NVIDIA documents them, on the host.
//
// It refuses what the library refuses (sizes of attributes, shapes that do not fit, addresses
// less aligned than was promised, algorithms that it did not give out) and multiplies as slowly
// as can be, columns first. Built by a test with
//
//   -DVERSION=130100    what cublasLtGetVersion says
//   -DWITHOUT_MATMUL    without cublasLtMatmul
//   -DODD_ROWS_ONLY     algorithms run no even number of columns of B
//   -DNO_ALGORITHMS     the heuristic finds none
//   -DWITHOUT_FP8       it finds none for e4m3, as on a GPU without such products
//   -DWITHOUT_BLOCKS    it calls scales of blocks wrong values, as a GPU without them may
//   -DREFUSES_LATE      it refuses products of e4m3 that it has named an algorithm for
//   -DBEFORE_12_9       it does not know scales of rows and of blocks
//   -DHEURISTIC_FAILS   the heuristic ends with an error
//   -DWRONG_FIRST       the first algorithm that works is wrong in the last column of D
//   -DNO_CREATE         cublasLtCreate fails
//   -DREAL_HEADER       compare all numbers with NVIDIA's header, and build nothing else

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum {
    SUCCESS = 0, NOT_INITIALIZED = 1, INVALID_VALUE = 7, INTERNAL_ERROR = 14,
    NOT_SUPPORTED = 15,
    OP_N = 0, OP_T = 1,
    R_32F = 0, R_16BF = 14, R_8F_E4M3 = 28, COMPUTE_32F = 68,
    EPILOGUE_DEFAULT = 1, EPILOGUE_BIAS = 4,
    REDUCTION_COMPUTE_TYPE = 2,
    DESC_TRANSA = 3, DESC_TRANSB = 4, DESC_EPILOGUE = 7, DESC_BIAS_POINTER = 8,
    DESC_A_SCALE_POINTER = 17, DESC_B_SCALE_POINTER = 18, DESC_FAST_ACCUM = 25,
    DESC_A_SCALE_MODE = 31, DESC_B_SCALE_MODE = 32, SCALE_OUTER_VEC_32F = 3,
    SCALE_VEC128_32F = 4, SCALE_BLK128x128_32F = 5,
    LAYOUT_TYPE = 0, LAYOUT_ROWS = 2, LAYOUT_COLS = 3, LAYOUT_LD = 4,
    PREF_WORKSPACE = 1, PREF_REDUCTION = 3, PREF_ALIGN_A = 5, PREF_ALIGN_D = 8,
};

#ifdef REAL_HEADER
#include "cublasLt.h"
#define SAME(ours, theirs) _Static_assert((int)(ours) == (int)(theirs), #theirs)
SAME(SUCCESS, CUBLAS_STATUS_SUCCESS);
SAME(NOT_INITIALIZED, CUBLAS_STATUS_NOT_INITIALIZED);
SAME(INVALID_VALUE, CUBLAS_STATUS_INVALID_VALUE);
SAME(INTERNAL_ERROR, CUBLAS_STATUS_INTERNAL_ERROR);
SAME(NOT_SUPPORTED, CUBLAS_STATUS_NOT_SUPPORTED);
SAME(OP_N, CUBLAS_OP_N);
SAME(OP_T, CUBLAS_OP_T);
SAME(R_32F, CUDA_R_32F);
SAME(R_16BF, CUDA_R_16BF);
SAME(COMPUTE_32F, CUBLAS_COMPUTE_32F);
SAME(EPILOGUE_DEFAULT, CUBLASLT_EPILOGUE_DEFAULT);
SAME(EPILOGUE_BIAS, CUBLASLT_EPILOGUE_BIAS);
SAME(REDUCTION_COMPUTE_TYPE, CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE);
SAME(DESC_TRANSA, CUBLASLT_MATMUL_DESC_TRANSA);
SAME(DESC_TRANSB, CUBLASLT_MATMUL_DESC_TRANSB);
SAME(DESC_EPILOGUE, CUBLASLT_MATMUL_DESC_EPILOGUE);
SAME(DESC_BIAS_POINTER, CUBLASLT_MATMUL_DESC_BIAS_POINTER);
SAME(R_8F_E4M3, CUDA_R_8F_E4M3);
SAME(DESC_A_SCALE_POINTER, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER);
SAME(DESC_B_SCALE_POINTER, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER);
SAME(DESC_FAST_ACCUM, CUBLASLT_MATMUL_DESC_FAST_ACCUM);
SAME(DESC_A_SCALE_MODE, CUBLASLT_MATMUL_DESC_A_SCALE_MODE);
SAME(DESC_B_SCALE_MODE, CUBLASLT_MATMUL_DESC_B_SCALE_MODE);
SAME(SCALE_OUTER_VEC_32F, CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F);
SAME(SCALE_VEC128_32F, CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F);
SAME(SCALE_BLK128x128_32F, CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F);
SAME(LAYOUT_TYPE, CUBLASLT_MATRIX_LAYOUT_TYPE);
SAME(LAYOUT_ROWS, CUBLASLT_MATRIX_LAYOUT_ROWS);
SAME(LAYOUT_COLS, CUBLASLT_MATRIX_LAYOUT_COLS);
SAME(LAYOUT_LD, CUBLASLT_MATRIX_LAYOUT_LD);
SAME(PREF_WORKSPACE, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES);
SAME(PREF_REDUCTION, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK);
SAME(PREF_ALIGN_A, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES);
SAME(PREF_ALIGN_D, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES);
SAME(sizeof(cublasLtMatmulAlgo_t), 64);
SAME(sizeof(cublasLtMatmulHeuristicResult_t), 96);
SAME(offsetof(cublasLtMatmulHeuristicResult_t, workspaceSize), 64);
SAME(offsetof(cublasLtMatmulHeuristicResult_t, state), 72);
SAME(offsetof(cublasLtMatmulHeuristicResult_t, wavesCount), 76);
#else

typedef struct { int unused; } Handle;
typedef struct {
    int transa, transb, epilogue;
    const void* bias;
    const float* scales[2];  // of A and of B
    int scale_modes[2];
    int8_t fast;
} Desc;
typedef struct { uint32_t type; uint64_t rows, cols; int64_t ld; } Layout;
typedef struct { uint64_t workspace; uint32_t reduction, align[4]; } Preference;
typedef struct { uint64_t magic, align, rest[6]; } Algo;
typedef struct { Algo algo; size_t workspace; int state; float waves; int reserved[4]; } Result;

#define MAGIC 0x6b6c6d6e6f707172u
#define NEEDS 1024

size_t cublasLtGetVersion(void) { return VERSION; }

int cublasLtCreate(Handle** handle) {
#ifdef NO_CREATE
    (void)handle;
    return NOT_INITIALIZED;
#else
    *handle = calloc(1, sizeof(Handle));
    return SUCCESS;
#endif
}

int cublasLtDestroy(Handle* handle) { free(handle); return SUCCESS; }

int cublasLtMatmulDescCreate(Desc** desc, int compute, int scale) {
    if (compute != COMPUTE_32F || scale != R_32F) return INVALID_VALUE;
    *desc = calloc(1, sizeof(Desc));
    (*desc)->epilogue = EPILOGUE_DEFAULT;
    return SUCCESS;
}

int cublasLtMatmulDescDestroy(Desc* desc) { free(desc); return SUCCESS; }

static int set(void* to, size_t size, const void* from, size_t bytes) {
    if (size != bytes) return INVALID_VALUE;
    memcpy(to, from, bytes);
    return SUCCESS;
}

int cublasLtMatmulDescSetAttribute(Desc* desc, int attribute, const void* at, size_t bytes) {
    switch (attribute) {
        case DESC_TRANSA: return set(&desc->transa, 4, at, bytes);
        case DESC_TRANSB: return set(&desc->transb, 4, at, bytes);
        case DESC_EPILOGUE: return set(&desc->epilogue, 4, at, bytes);
        case DESC_BIAS_POINTER: return set(&desc->bias, 8, at, bytes);
        case DESC_A_SCALE_POINTER: return set(&desc->scales[0], 8, at, bytes);
        case DESC_B_SCALE_POINTER: return set(&desc->scales[1], 8, at, bytes);
#ifdef BEFORE_12_9
        case DESC_A_SCALE_MODE: case DESC_B_SCALE_MODE: return INVALID_VALUE;
#else
        case DESC_A_SCALE_MODE: return set(&desc->scale_modes[0], 4, at, bytes);
        case DESC_B_SCALE_MODE: return set(&desc->scale_modes[1], 4, at, bytes);
#endif
        case DESC_FAST_ACCUM: return set(&desc->fast, 1, at, bytes);
        default: return INVALID_VALUE;
    }
}

int cublasLtMatrixLayoutCreate(Layout** layout, int type, uint64_t rows, uint64_t cols, int64_t ld) {
    Layout made = {(uint32_t)type, rows, cols, ld};
    *layout = malloc(sizeof made);
    **layout = made;
    return SUCCESS;
}

int cublasLtMatrixLayoutDestroy(Layout* layout) { free(layout); return SUCCESS; }

int cublasLtMatrixLayoutSetAttribute(Layout* layout, int attribute, const void* at, size_t bytes) {
    switch (attribute) {
        case LAYOUT_TYPE: return set(&layout->type, 4, at, bytes);
        case LAYOUT_ROWS: return set(&layout->rows, 8, at, bytes);
        case LAYOUT_COLS: return set(&layout->cols, 8, at, bytes);
        case LAYOUT_LD: return set(&layout->ld, 8, at, bytes);
        default: return INVALID_VALUE;
    }
}

int cublasLtMatmulPreferenceCreate(Preference** preference) {
    Preference made = {0, 7, {256, 256, 256, 256}};
    *preference = malloc(sizeof made);
    **preference = made;
    return SUCCESS;
}

int cublasLtMatmulPreferenceDestroy(Preference* preference) { free(preference); return SUCCESS; }

int cublasLtMatmulPreferenceSetAttribute(Preference* p, int attribute, const void* at, size_t bytes) {
    if (attribute == PREF_WORKSPACE) return set(&p->workspace, 8, at, bytes);
    if (attribute == PREF_REDUCTION) return set(&p->reduction, 4, at, bytes);
    if (attribute < PREF_ALIGN_A || attribute > PREF_ALIGN_D) return INVALID_VALUE;
    return set(&p->align[attribute - PREF_ALIGN_A], 4, at, bytes);
}

// Whether A has scales of blocks of 128 x 128, and B of 128 elements of a column.
static int is_of_blocks(const Desc* desc) {
    return desc->scale_modes[0] == SCALE_BLK128x128_32F && desc->scale_modes[1] == SCALE_VEC128_32F;
}

// Whether descriptions of e4m3 fit: scales of both, sums of all their bits, bf16 out, and every
// column of A, B and D at a multiple of 16 bytes.
static int fits_fp8(const Desc* desc, const Layout* a, const Layout* b, const Layout* d) {
#ifdef WITHOUT_FP8
    (void)desc; (void)a; (void)b; (void)d;
    return 0;
#else
    if (is_of_blocks(desc)) {
        // Scales of columns lie beside each other, in vectors of 16 bytes.
        if (a->cols % 4 != 0 || b->cols % 4 != 0) return 0;
    } else if (desc->scale_modes[0] != SCALE_OUTER_VEC_32F || desc->scale_modes[1] != SCALE_OUTER_VEC_32F) {
        return 0;
    }
    for (int i = 0; i < 2; i++) {
        if (!desc->scales[i] || (uintptr_t)desc->scales[i] % 16) return 0;
    }
    if (desc->fast || d->type != R_16BF) return 0;
    return a->rows % 16 == 0 && a->ld % 16 == 0 && b->ld % 16 == 0 && d->ld % 8 == 0;
#endif
}

// Whether the descriptions fit each other: op(A) is [m, k], B is [k, n], C and D are [m, n].
static int fits(const Desc* desc, const Layout* a, const Layout* b, const Layout* c, const Layout* d) {
    if (desc->transa != OP_T || desc->transb != OP_N) return 0;
    if (desc->epilogue != EPILOGUE_DEFAULT && desc->epilogue != EPILOGUE_BIAS) return 0;
    if (a->type != b->type || c->type != d->type) return 0;
    if (a->type == R_8F_E4M3) {
        if (!fits_fp8(desc, a, b, d)) return 0;
    } else if (a->type != R_16BF || desc->scale_modes[0] || desc->scale_modes[1]) {
        return 0;
    }
    if (d->type != R_16BF && d->type != R_32F) return 0;
    // A bias is of the output's type, and ours is bf16.
    if (d->type == R_32F && desc->epilogue == EPILOGUE_BIAS) return 0;
    uint64_t k = a->rows, m = a->cols;
    if (b->rows != k || d->rows != m || d->cols != b->cols) return 0;
    if (c->rows != d->rows || c->cols != d->cols || c->ld != d->ld) return 0;
    if (a->ld < (int64_t)k || b->ld < (int64_t)k || d->ld < (int64_t)m) return 0;
#ifdef ODD_ROWS_ONLY
    if (b->cols % 2 == 0) return 0;
#endif
    return 1;
}

static void give(Result* result, uint64_t align) {
    memset(result, 0, sizeof *result);
    result->algo.magic = MAGIC;
    result->algo.align = align;
    result->workspace = NEEDS;
    result->waves = 1.0f;
}

int cublasLtMatmulAlgoGetHeuristic(Handle* handle, Desc* desc, Layout* a, Layout* b, Layout* c,
                                   Layout* d, Preference* preference, int asked, Result* results,
                                   int* count) {
    *count = 0;
#ifdef HEURISTIC_FAILS
    (void)handle; (void)desc; (void)a; (void)b; (void)c; (void)d;
    (void)preference; (void)asked; (void)results;
    return INTERNAL_ERROR;
#endif
    if (!handle || asked < 2) return INVALID_VALUE;
#ifdef WITHOUT_BLOCKS
    if (is_of_blocks(desc)) return INVALID_VALUE;
#endif
    if (!fits(desc, a, b, c, d)) return NOT_SUPPORTED;
    if (preference->workspace < NEEDS || preference->reduction != REDUCTION_COMPUTE_TYPE) return NOT_SUPPORTED;
#ifdef NO_ALGORITHMS
    return SUCCESS;
#endif
    // The first does not work, as the library may say of its results.
    give(&results[0], 1);
    results[0].state = NOT_SUPPORTED;
    uint64_t align = 256;
    for (int i = 0; i < 4; i++) {
        if (preference->align[i] < align) align = preference->align[i];
    }
    give(&results[1], align);
    *count = 2;
#ifdef WRONG_FIRST
    if (asked < 3) return INVALID_VALUE;
    results[1].algo.rest[0] = 1;
    give(&results[2], align);
    *count = 3;
#endif
    return SUCCESS;
}

int cublasLtMatmulAlgoCheck(Handle* handle, Desc* desc, Layout* a, Layout* b, Layout* c, Layout* d,
                            const Algo* algo, Result* result) {
    if (!handle || algo->magic != MAGIC) return INVALID_VALUE;
    if (!fits(desc, a, b, c, d)) return NOT_SUPPORTED;
    give(result, algo->align);
    return SUCCESS;
}

#ifndef WITHOUT_MATMUL
static float wide(uint16_t bf16) {
    uint32_t bits = (uint32_t)bf16 << 16;
    float x;
    memcpy(&x, &bits, 4);
    return x;
}

static float wide_e4m3(uint8_t x) {
    int exponent = x >> 3 & 15, mantissa = x & 7;
    float size = exponent ? (8 + mantissa) / 8.0f : mantissa / 4.0f;
    for (int e = exponent; e < 7; e++) size /= 2;
    for (int e = 7; e < exponent; e++) size *= 2;
    return x & 0x80 ? -size : size;
}

// Element `at` of a factor.
static double factor(const void* of, const Layout* layout, uint64_t at) {
    if (layout->type == R_8F_E4M3) return wide_e4m3(((const uint8_t*)of)[at]);
    return wide(((const uint16_t*)of)[at]);
}

static uint16_t narrow(float x) {
    uint32_t bits;
    memcpy(&bits, &x, 4);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

// Element (i, j) of a product of e4m3, with the scales that both factors have.
static double scaled(const Desc* desc, const void* A, const Layout* a, const void* B, const Layout* b,
                     uint64_t i, uint64_t j) {
    const float *of_a = desc->scales[0], *of_b = desc->scales[1];
    int is_blocks = is_of_blocks(desc);
    uint64_t k = a->rows, block = is_blocks ? 128 : k;
    // Of A a multiple of 4 of scales for each 128 columns; of B those of all columns for each 128 rows.
    uint64_t of_column = ((k + 127) / 128 + 3) / 4 * 4;
    double sum = 0;
    for (uint64_t from = 0; from < k; from += block) {
        double part = 0;
        for (uint64_t p = from; p < k && p < from + block; p++) {
            part += factor(A, a, p + i * (uint64_t)a->ld) * factor(B, b, p + j * (uint64_t)b->ld);
        }
        uint64_t at = from / 128;
        sum += is_blocks ? (float)part * of_b[at * b->cols + j] * of_a[i / 128 * of_column + at]
                         : (float)part * of_b[j] * of_a[i];
    }
    return sum;
}

int cublasLtMatmul(Handle* handle, Desc* desc, const float* alpha, const void* A, Layout* a,
                   const void* B, Layout* b, const float* beta, const void* C, Layout* c,
                   void* D, Layout* d, const Algo* algo, void* workspace, size_t bytes,
                   void* stream) {
    (void)stream;
    if (!handle || algo->magic != MAGIC || !fits(desc, a, b, c, d)) return INVALID_VALUE;
#ifdef REFUSES_LATE
    if (a->type == R_8F_E4M3) return NOT_SUPPORTED;
#endif
    if (bytes < NEEDS || !workspace || (uintptr_t)workspace % 256 != 0) return INVALID_VALUE;
    uintptr_t all = (uintptr_t)A | (uintptr_t)B | (uintptr_t)C | (uintptr_t)D;
    if (all % algo->align != 0) return INVALID_VALUE;
    memset(workspace, 0x5a, NEEDS);
    const uint16_t* bias = desc->epilogue == EPILOGUE_BIAS ? desc->bias : NULL;
    for (uint64_t j = 0; j < d->cols; j++) {
        for (uint64_t i = 0; i < d->rows; i++) {
            double sum = 0;
            if (a->type == R_8F_E4M3) {
                sum = scaled(desc, A, a, B, b, i, j);
            } else {
                for (uint64_t p = 0; p < a->rows; p++) {
                    sum += factor(A, a, p + i * (uint64_t)a->ld) * factor(B, b, p + j * (uint64_t)b->ld);
                }
            }
            if (algo->rest[0] && j + 1 == d->cols) sum = 0;
            uint64_t at = i + j * (uint64_t)d->ld;
            float y = *alpha * (float)sum;
            int is_wide = d->type == R_32F;
            if (*beta != 0) y += *beta * (is_wide ? ((const float*)C)[at] : wide(((const uint16_t*)C)[at]));
            if (bias) y += wide(bias[i]);
            if (is_wide) ((float*)D)[at] = y;
            else ((uint16_t*)D)[at] = narrow(y);
        }
    }
    return SUCCESS;
}
#endif
#endif
