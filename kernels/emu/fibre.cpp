#include "fibre.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

namespace prelude::emu {

// Clears AddressSanitizer's marks of a stack: a fibre that was left in the middle has not cleared them.
static void forget_frames([[maybe_unused]] const Stack& stack) {
#if defined(__SANITIZE_ADDRESS__)
    __asan_unpoison_memory_region(stack.bottom(), Stack::bytes());
#endif
}

// Kernels are shallow: what takes room is inlined register arrays. Sanitizers widen frames.
#if defined(__SANITIZE_ADDRESS__)
constexpr size_t STACK_BYTES = 512 << 10;
#else
constexpr size_t STACK_BYTES = 128 << 10;
#endif

static size_t page_bytes() { return static_cast<size_t>(sysconf(_SC_PAGESIZE)); }

size_t Stack::bytes() { return STACK_BYTES; }

Stack::Stack() {
    size_t guard = page_bytes();
    mapping_ = mmap(nullptr, guard + STACK_BYTES, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapping_ == MAP_FAILED || mprotect(mapping_, guard, PROT_NONE) != 0) {
        std::perror("emulation: no memory for a fibre's stack");
        std::abort();
    }
    bottom_ = static_cast<char*>(mapping_) + guard;
}

Stack::~Stack() { munmap(mapping_, page_bytes() + STACK_BYTES); }

#if PRELUDE_FAST_FIBRES

// Saves the registers that a callee must preserve, swaps stacks, and restores the registers. The caller
// saves all others, since this is an ordinary call to the compiler.
extern "C" void prelude_emu_swap(void** save, void* load);
asm(R"(
.text
.hidden prelude_emu_swap
.globl prelude_emu_swap
.type prelude_emu_swap, @function
prelude_emu_swap:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
.size prelude_emu_swap, .-prelude_emu_swap
)");

void Fibre::prepare(const Stack& stack, void (*entry)()) {
    forget_frames(stack);
    stack_bottom_ = stack.bottom();
    stack_bytes_ = Stack::bytes();
    auto top = reinterpret_cast<void**>(static_cast<char*>(stack.bottom()) + Stack::bytes());
    // At `entry` the stack must be 8 past a multiple of 16, as after a call.
    *--top = nullptr;
    *--top = reinterpret_cast<void*>(entry);
    for (int saved = 0; saved < 6; saved++) *--top = nullptr;
    sp_ = top;
}

#else

void Fibre::prepare(const Stack& stack, void (*entry)()) {
    forget_frames(stack);
    stack_bottom_ = stack.bottom();
    stack_bytes_ = Stack::bytes();
    getcontext(&context_);
    context_.uc_stack.ss_sp = stack.bottom();
    context_.uc_stack.ss_size = Stack::bytes();
    context_.uc_link = nullptr;
    makecontext(&context_, entry, 0);
}

#endif

#if defined(__SANITIZE_ADDRESS__)
// The fibre that switched last: a fibre that starts finds here where the launching thread's stack is.
static thread_local Fibre* left;
#endif

void Fibre::swap(Fibre& from, Fibre& to) {
#if defined(__SANITIZE_ADDRESS__)
    void* fake = nullptr;
    left = &from;
    __sanitizer_start_switch_fiber(&fake, to.stack_bottom_, to.stack_bytes_);
#endif
#if PRELUDE_FAST_FIBRES
    prelude_emu_swap(&from.sp_, to.sp_);
#else
    swapcontext(&from.context_, &to.context_);
#endif
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(fake, nullptr, nullptr);
#endif
}

void Fibre::entered() {
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(nullptr, &left->stack_bottom_, &left->stack_bytes_);
#endif
}

}  // namespace prelude::emu
