// Threads of execution that switch only when asked: one for each CUDA thread, all in one thread
// of the operating system.
#pragma once

#include <cstddef>

#if defined(__x86_64__) && !defined(PRELUDE_PORTABLE_FIBRES)
#define PRELUDE_FAST_FIBRES 1
#else
#define PRELUDE_FAST_FIBRES 0
#include <ucontext.h>
#endif

namespace prelude::emu {

// Memory for one fibre's calls, with an inaccessible page below.
class Stack {
  public:
    Stack();
    ~Stack();
    Stack(const Stack&) = delete;
    Stack& operator=(const Stack&) = delete;

    void* bottom() const { return bottom_; }
    static size_t bytes();

  private:
    void* mapping_;
    void* bottom_;
};

// A place to continue at.
class Fibre {
  public:
    // The calling thread itself, once it has switched away.
    Fibre() = default;
    // Will call `entry` on `stack`. `entry` must not return.
    void prepare(const Stack& stack, void (*entry)());
    // Saves the caller in `from` and continues `to`.
    static void swap(Fibre& from, Fibre& to);
    // To be called first by `entry`.
    static void entered();

  private:
#if PRELUDE_FAST_FIBRES
    void* sp_ = nullptr;
#else
    ucontext_t context_{};
#endif
    const void* stack_bottom_ = nullptr;  // for AddressSanitizer
    size_t stack_bytes_ = 0;
};

}  // namespace prelude::emu
