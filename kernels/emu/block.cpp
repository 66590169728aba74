// One launch: blocks in some order, the threads of each as fibres in some order.

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <numeric>

#include "async.h"
#include "emu.h"

namespace prelude::emu {

thread_local Launch* running;

// The stacks of finished launches, kept for the next one.
static thread_local std::vector<std::unique_ptr<Stack>> spare_stacks;

std::string Site::text() const {
    if (file == nullptr) return "an unknown place";
    const char* name = std::strrchr(file, '/');
    return std::string(name ? name + 1 : file) + ":" + std::to_string(line);
}

Launch::Launch(Device& device, const LaunchRequest& request)
    : device(device), request(request), random_(request.seed * 0x9e3779b97f4a7c15u + 1) {
    u32 count = static_cast<u32>(request.block.count());
    threads.resize(count);
    warps.resize((count + WARP_LANES - 1) / WARP_LANES);
    async = std::make_shared<Async>(*this);
    shared_storage.resize(SHARED_BYTES_MAX + 1024);
    auto at = reinterpret_cast<uintptr_t>(shared_storage.data());
    shared = shared_storage.data() + ((1024 - at % 1024) % 1024);
    for (Thread& thread : threads) {
        if (spare_stacks.empty()) {
            thread.stack = std::make_unique<Stack>();
        } else {
            thread.stack = std::move(spare_stacks.back());
            spare_stacks.pop_back();
        }
    }
}

// SplitMix64.
u64 Launch::random() {
    u64 z = (random_ += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

bool Launch::run() {
    Launch* outer = running;
    running = this;
    device.launches++;
    u32 blocks = static_cast<u32>(request.grid.count());
    std::vector<u32> order(blocks);
    std::iota(order.begin(), order.end(), 0u);
    if (request.order == Order::WarpGreedyReversed) std::reverse(order.begin(), order.end());
    if (request.order == Order::Random) {
        for (u32 i = blocks; i > 1; i--) std::swap(order[i - 1], order[random() % i]);
    }
    for (u32 number : order) {
        block_number = number;
        block_index = {number % request.grid.x, number / request.grid.x % request.grid.y,
                       number / request.grid.x / request.grid.y};
        run_block();
        if (!fault.empty()) break;
    }
    for (Thread& thread : threads) spare_stacks.push_back(std::move(thread.stack));
    running = outer;
    std::string damage;
    if (fault.empty() && !device.canaries_intact(&damage)) fault = damage;
    return fault.empty();
}

void Launch::run_block() {
    epoch = 0;
    has_waited = false;
    live = static_cast<u32>(threads.size());
    statics_.clear();
    // Dynamic shared memory comes first, so that its alignment is the buffer's.
    shared_bytes = request.dynamic_bytes;
    static_end_ = (request.dynamic_bytes + 15) / 16 * 16;
    std::memset(shared, POISON, static_end_);
    shadow.reset(static_end_);
    for (Barrier& barrier : barriers) barrier = Barrier();
    for (Warp& warp : warps) warp = Warp();
    async->reset();
    for (u32 i = 0; i < threads.size(); i++) {
        Thread& thread = threads[i];
        Dim3 b = request.block;
        thread.index = {i % b.x, i / b.x % b.y, i / b.x / b.y};
        thread.linear = i;
        thread.lane = i % WARP_LANES;
        thread.warp = i / WARP_LANES;
        thread.state = State::Ready;
        thread.time = 1;
        thread.seen.clear();
        thread.has_waited = false;
        thread.open_copies.clear();
        thread.copy_groups.clear();
        thread.fences.clear();
        thread.fibre = Fibre();
        thread.fibre.prepare(*thread.stack, thread_entry);
        warps[thread.warp].ready |= 1u << thread.lane;
        warps[thread.warp].live |= 1u << thread.lane;
    }
    cursor_ = request.order == Order::WarpGreedyReversed ? static_cast<u32>(warps.size()) - 1 : 0;
    while (live > 0 && fault.empty()) {
        Thread* thread = next();
        if (thread == nullptr) {
            report_deadlock();
            break;
        }
        current = thread;
        Fibre::swap(scheduler_, thread->fibre);
    }
    if (fault.empty()) fault = async->unfinished();
    // A launch of such blocks could end before the one ahead of it, and the next one would take
    // that for the end of both.
    if (fault.empty() && !has_waited) {
        char where[64];
        std::snprintf(where, sizeof where, "(%u,%u,%u)", block_index.x, block_index.y, block_index.z);
        fault = "block " + std::string(where) + " ended without dep_wait()";
    }
}

void Launch::dep_wait() {
    current->has_waited = true;
    has_waited = true;
}

// Returns the thread that runs next. The search starts at `cursor_`, which is a thread's number in round
// robin and a warp's otherwise.
Thread* Launch::next() {
    u32 count = static_cast<u32>(warps.size());
    switch (request.order) {
        case Order::RoundRobin: {
            for (u32 i = 0; i <= count; i++) {
                u32 warp = (cursor_ / WARP_LANES + i) % count;
                u32 ready = warps[warp].ready;
                if (i == 0) ready &= ~0u << (cursor_ % WARP_LANES);
                if (ready == 0) continue;
                u32 thread = warp * WARP_LANES + static_cast<u32>(__builtin_ctz(ready));
                cursor_ = (thread + 1) % static_cast<u32>(threads.size());
                return &threads[thread];
            }
            return nullptr;
        }
        case Order::WarpGreedy:
        case Order::WarpGreedyReversed: {
            bool reversed = request.order == Order::WarpGreedyReversed;
            for (u32 i = 0; i < count; i++) {
                u32 warp = (reversed ? cursor_ + count - i : cursor_ + i) % count;
                u32 ready = warps[warp].ready;
                if (ready == 0) continue;
                cursor_ = warp;
                u32 lane = reversed ? 31 - __builtin_clz(ready) : __builtin_ctz(ready);
                return &threads[warp * WARP_LANES + lane];
            }
            return nullptr;
        }
        case Order::Random: {
            // Mostly the same warp as before, so that one warp runs far ahead of the others.
            u64 draw = random();
            u32 first = draw % 8 == 0 ? static_cast<u32>(draw >> 32) % count : cursor_;
            for (u32 i = 0; i < count; i++) {
                u32 warp = (first + i) % count;
                u32 ready = warps[warp].ready;
                if (ready == 0) continue;
                cursor_ = warp;
                u32 skip = static_cast<u32>(draw >> 8) % static_cast<u32>(__builtin_popcount(ready));
                while (skip-- > 0) ready &= ready - 1;
                return &threads[warp * WARP_LANES + static_cast<u32>(__builtin_ctz(ready))];
            }
            return nullptr;
        }
    }
    return nullptr;
}

void Launch::thread_entry() {
    Fibre::entered();
    Launch& launch = *running;
    launch.request.kernel->call(launch.request.params);
    launch.finish_thread();
    for (;;) Fibre::swap(launch.current->fibre, launch.scheduler_);
}

void Launch::finish_thread() {
    current->state = State::Done;
    warps[current->warp].ready &= ~(1u << current->lane);
    warps[current->warp].live &= ~(1u << current->lane);
    live--;
    // A block barrier waits for those that have not left.
    Barrier& all = barriers[0];
    if (live > 0 && !all.waiting.empty() && all.arrived == live) complete_barrier(all, true);
}

void Launch::fail(const std::string& what, Site site) {
    fault = what + ", at " + site.text() + ", by " + who(*current);
    // The fibre is left where it is: kernels own nothing that would need to be undone.
    for (;;) Fibre::swap(current->fibre, scheduler_);
}

void Launch::wait(const char* what, u32 on, Site site) {
    Thread& thread = *current;
    thread.state = State::Waiting;
    thread.waits_for = what;
    thread.waits_on = on;
    thread.waits_at = site;
    warps[thread.warp].ready &= ~(1u << thread.lane);
    Fibre::swap(thread.fibre, scheduler_);
}

void Launch::wake(u32 linear) {
    Thread& thread = threads[linear];
    thread.state = State::Ready;
    warps[thread.warp].ready |= 1u << thread.lane;
}

std::string Launch::who(const Thread& thread) const {
    char text[128];
    std::snprintf(text, sizeof text, "thread (%u,%u,%u) = warp %u lane %u of block (%u,%u,%u)",
                  thread.index.x, thread.index.y, thread.index.z, thread.warp, thread.lane,
                  block_index.x, block_index.y, block_index.z);
    return text;
}

// Says who waits for what, threads with the same reason together.
void Launch::report_deadlock() {
    struct Reason {
        std::string text;
        std::vector<u32> threads;
    };
    std::vector<Reason> reasons;
    u32 done = 0;
    for (const Thread& thread : threads) {
        if (thread.state == State::Done) {
            done++;
            continue;
        }
        char on[16];
        std::snprintf(on, sizeof on, "%#x", thread.waits_on);
        std::string text = std::string(thread.waits_for) + " " + on + " at " + thread.waits_at.text();
        auto same = [&](const Reason& reason) { return reason.text == text; };
        auto found = std::find_if(reasons.begin(), reasons.end(), same);
        if (found == reasons.end()) found = reasons.insert(reasons.end(), {text, {}});
        found->threads.push_back(thread.linear);
    }
    char where[64];
    std::snprintf(where, sizeof where, "(%u,%u,%u)", block_index.x, block_index.y, block_index.z);
    fault = "deadlock in block " + std::string(where) + ": " + std::to_string(done) + " of " +
            std::to_string(threads.size()) + " threads have left";
    for (const Reason& reason : reasons) {
        fault += "; " + std::to_string(reason.threads.size()) + " wait for " + reason.text + " (threads";
        for (size_t i = 0; i < reason.threads.size() && i < 8; i++) {
            fault += " " + std::to_string(reason.threads[i]);
        }
        fault += reason.threads.size() > 8 ? " …)" : ")";
    }
}

}  // namespace prelude::emu
