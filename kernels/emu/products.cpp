// Products of warpgroups (wgmma), a warp's 16 rows at a time: when a warp waits for a group, operands
// are read through their descriptors, and sums are written to registers, which hold NaN before. So
// what is read or overwritten too early shows.
//
// Sums add k = 0, 1, 2, … as those of mma do.

#include <cstring>

#include "async.h"
#include "tensor.h"

namespace prelude::emu {

static float widen(u16 bits) {
    u32 word = static_cast<u32>(bits) << 16;
    float value;
    std::memcpy(&value, &word, 4);
    return value;
}

// The operand of wgmma that a descriptor describes: PTX manual, "Matrix Descriptor Format" and
// "Strides" of wgmma.mma_async.
struct Operand {
    u32 start, leading, stride;
    bool is_transposed;

    Operand(Launch& launch, u64 bits, bool is_transposed, Site site)
        : start((bits & 0x3fff) << 4),
          leading((bits >> 16 & 0x3fff) << 4),
          stride((bits >> 32 & 0x3fff) << 4),
          is_transposed(is_transposed) {
        if (bits >> 62 != 1) launch.fail("an operand without 128-byte swizzle", site);
        u64 unused = bits & ~(0x3fffull | 0x3fffull << 16 | 0x3fffull << 32 | 3ull << 62);
        bool is_aligned = (start & 0x380) == 0 && (!is_transposed || (start & 0x7f) == 0);
        if (unused != 0 || !is_aligned) {
            launch.fail("an operand that does not begin at a multiple of 1024 bytes", site);
        }
    }

    // Returns where 8 values lie: k.. of row n, or n.. of row k if the operand is transposed.
    u32 chunk(u32 n, u32 k) const {
        u32 at = is_transposed ? n % 64 * 2 + n / 64 * leading + k % 8 * 128 + k / 8 * stride
                               : n % 8 * 128 + n / 8 * stride + k * 2;
        return swizzle_128(start + at);
    }

    // Calls `f(n, k, offset)` for each 8 values of `count` n from `first` on, for all 16 k.
    template <class F>
    void each(u32 first, u32 count, F f) const {
        for (u32 n = first; n < first + count; n += is_transposed ? 8 : 1) {
            for (u32 k = 0; k < 16; k += is_transposed ? 1 : 8) f(n, k, chunk(n, k));
        }
    }

    // Returns the values as [n - first][k].
    std::vector<float> read(Launch& launch, u32 first, u32 count) const {
        std::vector<float> values(count * 16);
        each(first, count, [&](u32 n, u32 k, u32 offset) {
            u16 bits[8];
            std::memcpy(bits, launch.shared + offset, 16);
            for (u32 i = 0; i < 8; i++) {
                u32 row = is_transposed ? n + i : n, column = is_transposed ? k : k + i;
                values[(row - first) * 16 + column] = widen(bits[i]);
            }
        });
        return values;
    }

    // Records that the hardware may read these values for `thread` from now on.
    void begin_reads(Launch& launch, u32 first, u32 count, const Thread& thread, Site site) const {
        each(first, count, [&](u32, u32, u32 offset) {
            if (offset + 16 > launch.shared_bytes) {
                launch.fail("an operand beyond shared memory", site);
            }
            launch.shadow.access(offset, 16, Access::Read, {&thread, true, false}, site);
        });
    }
    void end_reads(Launch& launch, u32 first, u32 count, const Thread& thread) const {
        each(first, count,
             [&](u32, u32, u32 offset) { launch.shadow.end_reads(offset, 16, thread); });
    }
};

void Async::check_same(u32 warp, const Product& product) {
    auto& issued = issued_[warp / 4];
    u32 index = products_[warp].count++;
    std::pair<u64, u64> own{product.has_registers ? 0 : product.a, product.b};
    if (index == issued.size()) {
        issued.push_back(own);
    } else if (issued[index] != own) {
        launch_.fail("warps of one warpgroup multiply different operands", product.site);
    }
}

void Async::issue(u32 warp) {
    const auto& first = *static_cast<ProductSlot*>(launch_.slot_of(0));
    Product made{first.a,    first.b, first.columns, first.has_registers,
                 first.adds, {},      {},            first.site};
    for (u32 lane = 0; lane < WARP_LANES; lane++) {
        const auto& slot = *static_cast<ProductSlot*>(launch_.slot_of(lane));
        if (slot.a != first.a || slot.b != first.b || slot.adds != first.adds) {
            launch_.fail("lanes of one warp multiply different operands", slot.site);
        }
        made.d[lane] = slot.d;
        made.registers[lane] = slot.registers;
    }
    if (launch_.threads.size() % 128 != 0) {
        launch_.fail("wgmma in a block that is not whole warpgroups", made.site);
    }
    WarpProducts& own = products_[warp];
    if (!own.is_fenced) launch_.fail("wgmma without wgmma_fence() before its group", made.site);
    check_same(warp, made);
    const Thread& thread = launch_.threads[warp * WARP_LANES];
    if (!made.has_registers) {
        // The hardware may read a warp's rows for other warps of the warpgroup too.
        Operand a(launch_, made.a, false, made.site);
        a.begin_reads(launch_, 0, 64, thread, made.site);
    }
    Operand b(launch_, made.b, made.has_registers, made.site);
    b.begin_reads(launch_, 0, made.columns, thread, made.site);

    u32 each = made.columns / 2;
    auto& sums = own.sums[made.d[0]];
    if (sums.products++ == 0) {
        sums.values.resize(WARP_LANES * each);
        for (u32 lane = 0; lane < WARP_LANES; lane++) {
            if (made.adds) std::memcpy(&sums.values[lane * each], made.d[lane], each * 4);
            for (u32 i = 0; i < each; i++) made.d[lane][i] = __builtin_nanf("");
        }
    }
    own.open.push_back(made);
}

void Async::multiply(u32 warp, const Product& product) {
    u32 rows = warp % 4 * 16, columns = product.columns;
    const Thread& thread = launch_.threads[warp * WARP_LANES];
    Operand operand_b(launch_, product.b, product.has_registers, product.site);
    std::vector<float> b = operand_b.read(launch_, 0, columns), a;
    operand_b.end_reads(launch_, 0, columns, thread);
    if (product.has_registers) {
        a.resize(16 * 16);
        for (u32 lane = 0; lane < WARP_LANES; lane++) {
            u32 g = lane / 4, t = lane % 4;
            for (u32 r = 0; r < 4; r++) {
                u32 word = product.registers[lane][r];
                float* to = &a[(g + 8 * (r % 2)) * 16 + 2 * t + 8 * (r / 2)];
                to[0] = widen(static_cast<u16>(word));
                to[1] = widen(static_cast<u16>(word >> 16));
            }
        }
    } else {
        Operand operand_a(launch_, product.a, false, product.site);
        a = operand_a.read(launch_, rows, 16);
        operand_a.end_reads(launch_, 0, 64, thread);
    }
    auto& own = products_[warp];
    auto found = own.sums.find(product.d[0]);
    u32 each = columns / 2;
    for (u32 lane = 0; lane < WARP_LANES; lane++) {
        for (u32 i = 0; i < each; i++) {
            const float* row = &a[(lane / 4 + i % 4 / 2 * 8) * 16];
            const float* column = &b[(i / 4 * 8 + lane % 4 * 2 + i % 2) * 16];
            float& to = found->second.values[lane * each + i];
            float sum = product.adds ? to : 0.0f;
            for (u32 k = 0; k < 16; k++) sum += row[k] * column[k];
            to = sum;
        }
    }
    if (--found->second.products > 0) return;
    for (u32 lane = 0; lane < WARP_LANES; lane++) {
        std::memcpy(product.d[lane], &found->second.values[lane * each], each * 4);
    }
    own.sums.erase(found);
}

void Async::commit(u32 warp) {
    WarpProducts& own = products_[warp];
    own.is_fenced = false;
    if (own.open.empty()) return;
    own.groups.emplace_back();
    own.groups.back().swap(own.open);
}

void Async::complete(u32 warp, u32 groups) {
    WarpProducts& own = products_[warp];
    while (own.groups.size() > groups) {
        for (const Product& product : own.groups.front()) multiply(warp, product);
        own.groups.pop_front();
    }
}

void complete_product(Launch& launch, u32, Warp&) { launch.async->issue(launch.current->warp); }
void complete_product_fence(Launch& launch, u32, Warp&) {
    launch.async->fence_products(launch.current->warp);
}
void complete_product_commit(Launch& launch, u32, Warp&) {
    launch.async->commit(launch.current->warp);
}
void complete_product_wait(Launch& launch, u32, Warp&) {
    const auto& slot = *static_cast<ProductWaitSlot*>(launch.slot_of(0));
    launch.async->complete(launch.current->warp, slot.groups);
}

}  // namespace prelude::emu
