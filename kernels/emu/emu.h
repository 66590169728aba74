// The functions and types that the parts of the emulation share. One launch runs on the calling thread of
// the operating system: blocks one after another, the threads of a block as fibres.
//
//   fibre.cpp      stack switching                device.cpp   device memory, bounds, canaries
//   block.cpp      one block: schedule, faults    shadow.cpp   races in shared memory
//   sync.cpp       barriers, votes, shuffles      tensor.cpp   ldmatrix, mma
//   copies.cpp     cp.async                       abi.cpp      what Rust calls
//   async.cpp      barriers with phases, tensor copies
//   products.cpp   products of warpgroups
//   emulated.h, emulated_hopper.h   the names that kernels use
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "fibre.h"

namespace prelude::emu {

using u8 = uint8_t;
using u16 = uint16_t;
using u32 = uint32_t;
using u64 = uint64_t;
using i64 = int64_t;

constexpr u32 WARP_LANES = 32;
constexpr u32 BLOCK_THREADS_MAX = 1024;
constexpr u32 NAMED_BARRIERS = 16;
// The most shared memory of a block on Hopper: 227 KB.
constexpr u32 SHARED_BYTES_MAX = 227 << 10;

// Fills memory that has not been written: NaN as bf16, f32 and e4m3, and absurd as an index.
constexpr int POISON = 0xff;

struct Dim3 {
    u32 x, y, z;
    u64 count() const { return u64(x) * y * z; }
};

// A place in a kernel's source.
struct Site {
    const char* file;
    int line;
    std::string text() const;
};

enum class Access : u8 { Read, Write, Atomic };

// ---- device memory ----

// One allocation, with canaries before and behind it.
struct Allocation {
    u8* data;
    size_t bytes;
    std::unique_ptr<u8[]> storage;
    // For each byte, 1 + the number of the block that wrote it in launch `written_in`; 0 if none did.
    // Made at the first write.
    std::vector<u32> writer;
    u64 written_in = 0;
};

// A range that a launch may touch.
struct Extent {
    u64 at;
    u64 bytes;
    u32 writable;
    u32 reserved;
};

class Device {
  public:
    u64 allocate(size_t bytes);
    bool free(u64 at);
    // The allocation that holds all of the range, or null.
    Allocation* find(u64 at, size_t bytes);
    // The last allocation that starts at or before `at`, or null.
    const Allocation* last_before(u64 at) const;
    // Describes the first damaged canary, if any.
    bool canaries_intact(std::string* damage) const;
    // The number of the launch under way, counted from 1.
    u64 launches = 0;
    // The number of the last launch before the host's last copy. It has ended even if the next launch
    // does not call dep_wait().
    u64 settled = 0;

  private:
    std::vector<std::unique_ptr<Allocation>> allocations_;  // sorted by address
    static constexpr size_t CACHE = 64;
    Allocation* cache_[CACHE] = {};
};

// ---- shared memory ----

// Who touched a part of shared memory, and when: after `epoch` block barriers and then `time` steps of
// the thread.
struct Stamp {
    u32 epoch = 0;
    u32 time = 0;
    u16 thread = 0;
    bool valid = false;
    bool atomic = false;
    bool in_flight = false;  // an asynchronous access that no thread has waited for
    bool generic = true;     // by a thread itself: copies and products see it after fence_async()
    u32 fences = 0;          // how often the thread had called fence_async() before
    Site site{nullptr, 0};
};

struct Thread;

// The thread that reads or writes shared memory.
struct Toucher {
    const Thread* thread;
    bool in_flight;
    bool generic;
};

struct Touch {
    Stamp write;
    Stamp reads[2];
};

// Last writer and readers of shared memory, kept for each 16 bytes, or for each 8, 4, 2 or 1
// where accesses are that small.
class Shadow {
  public:
    void reset(size_t bytes);
    void grow(size_t bytes);
    // Checks an access and remembers it.
    void access(size_t offset, size_t bytes, Access kind, Toucher by, Site site);
    // Records that an asynchronous write of the current thread has arrived.
    void land(size_t offset, size_t bytes);
    // Records that a tensor copy has arrived, as step `time` of clock number `clock`: a thread's number,
    // or a larger one.
    void land_copy(size_t offset, size_t bytes, u32 clock, u32 time);
    // Ends the reads that a product makes for a thread.
    void end_reads(size_t offset, size_t bytes, const Thread& thread);

  private:
    struct Chunk {
        Touch whole;
        u8 grain = 16;                   // bytes of a part
        std::unique_ptr<Touch[]> parts;  // 16 / grain of them, if more than one
    };
    template <class F>
    void each(size_t offset, size_t bytes, F f);
    static void split(Chunk& chunk, u8 grain);
    void touch(Touch& touch, size_t offset, Access kind, Toucher by, Site site);
    std::vector<Chunk> chunks_;
};

// ---- threads ----

enum class State : u8 { Ready, Waiting, Done };

// One 16-byte copy under way.
struct Copy {
    u32 to;  // offset in shared memory
    const u8* from;
    bool valid;
    Site site;
};

struct Thread {
    Fibre fibre;
    std::unique_ptr<Stack> stack;
    Dim3 index;
    u32 linear, lane, warp;
    State state;
    const char* waits_for;  // what the thread waits for, while Waiting
    u32 waits_on;           // barrier id or mask
    Site waits_at;
    void* slot;  // the thread's part of a warp operation
    // The steps of this thread since the last block barrier, and for each other thread the last step
    // that this thread has seen (empty: none).
    u32 time;
    std::vector<u32> seen;
    // Whether the thread has called dep_wait(). Until then the launches before this one may still run.
    bool has_waited;
    std::vector<Copy> open_copies;
    std::deque<std::vector<Copy>> copy_groups;
    // The thread's calls of fence_async().
    std::vector<Stamp> fences;
};

// The lanes that have come to one warp operation, and those still expected.
struct Gathering {
    u32 mask;
    u32 arrived = 0;
    const char* what;
    Site site;
};

struct Warp {
    u32 ready = 0;  // a bit per lane
    u32 live = 0;
    std::vector<Gathering> gatherings;
};

struct Barrier {
    u32 threads = 0;  // threads that the barrier expects, while somebody waits
    u32 arrived = 0;
    std::vector<u16> waiting;
    std::vector<u32> seen;  // what those who arrived have seen
    std::vector<Site> sites;  // where the first lane of each warp came to it
};

enum class Order : u32 { RoundRobin = 0, WarpGreedy = 1, WarpGreedyReversed = 2, Random = 3 };

// ---- a launch ----

struct KernelInfo;
class Async;

struct LaunchRequest {
    const KernelInfo* kernel;
    const void* params;
    Dim3 grid, block;
    u32 dynamic_bytes;
    Order order;
    u64 seed;
    const Extent* extents;  // may be null: all allocations
    size_t extent_count;
};

class Launch {
  public:
    Launch(Device& device, const LaunchRequest& request);
    // Runs all blocks; false if something was wrong, with `fault` saying what.
    bool run();

    Device& device;
    const LaunchRequest& request;
    std::string fault;

    // The block under way.
    Dim3 block_index;
    u32 block_number;
    u32 epoch;
    std::vector<Thread> threads;
    std::vector<Warp> warps;
    Barrier barriers[NAMED_BARRIERS];
    std::vector<u8> shared_storage;
    u8* shared;  // aligned to 1024
    u32 shared_bytes;
    Shadow shadow;
    std::shared_ptr<Async> async;
    u32 live;
    Thread* current;
    bool has_waited;  // whether a thread of the block has called dep_wait()

    // Stops the launch; does not return to a kernel.
    [[noreturn]] void fail(const std::string& what, Site site);
    // Suspends the current thread until wake().
    void wait(const char* what, u32 on, Site site);
    void wake(u32 thread);
    std::string who(const Thread& thread) const;

    // Lets the current thread see what launches before this one wrote.
    void dep_wait();

    // Checks an access to device memory, and remembers its writer.
    void check_global(const void* at, size_t bytes, Access kind, Site site);
    // Returns the offset of `at` in shared memory; the access is checked.
    u32 check_shared(const void* at, size_t bytes, Access kind, Site site);
    // Returns the offset of `at` in shared memory. Bounds and alignment are checked, the access is not.
    u32 shared_offset(const void* at, size_t bytes, Site site);
    void* static_shared(const void* key, size_t bytes, size_t align);

    // Barriers and warp operations.
    void barrier(u32 id, u32 threads, bool waits, Site site);
    // Gathers the lanes of `mask`; the last to come runs `complete` over all slots.
    void gather(u32 mask, void* slot, const char* what, void (*complete)(Launch&, u32 mask, Warp&),
                Site site);
    void* slot_of(u32 lane) const { return threads[current->warp * WARP_LANES + lane].slot; }

    void copy_async(u32 to, const void* from, bool valid, Site site);
    void commit_copies();
    void wait_copies(u32 groups);

    bool has_seen(const Thread& thread, const Stamp& stamp) const;
    void release(Thread& thread, std::vector<u32>& into) const;
    void acquire(Thread& thread, const std::vector<u32>& from) const;

  private:
    void run_block();
    Thread* next();
    void finish_thread();
    [[noreturn]] static void thread_entry();
    void report_deadlock();
    void complete_barrier(Barrier& barrier, bool whole_block);

    Fibre scheduler_;
    u64 random_;
    u32 cursor_ = 0;
    struct StaticShared {
        const void* key;
        u32 offset;
    };
    std::vector<StaticShared> statics_;
    u32 static_end_ = 0;
    u64 random();
};

// The launch under way on this thread.
extern thread_local Launch* running __attribute__((tls_model("initial-exec")));

// ---- what is linked in ----

struct Field {
    const char* name;
    u32 offset;
    u32 bytes;
};

struct ParamsInfo {
    const char* name;
    u32 bytes;
    std::vector<Field> fields;
};

struct KernelInfo {
    const char* name;
    const char* params_name;
    u32 params_bytes;
    u32 threads_max;
    void (*call)(const void* params);
};

std::vector<KernelInfo>& kernels();
std::vector<ParamsInfo>& params();

struct RegisterKernel {
    explicit RegisterKernel(const KernelInfo& kernel) { kernels().push_back(kernel); }
};
struct RegisterParams {
    explicit RegisterParams(const ParamsInfo& info) { params().push_back(info); }
};

}  // namespace prelude::emu
