// Barriers, and operations of a warp: which threads wait, and which have seen each other's work.
//
// Happens-before is exact for barriers. Each thread counts its own steps (`time`), and keeps for
// every other thread the last step that it has seen. A barrier of the whole block starts a new
// epoch in which everything before it has been seen, so the counts start again.

#include <algorithm>

#include "async.h"
#include "emu.h"
#include "tensor.h"

namespace prelude::emu {

bool Launch::has_seen(const Thread& thread, const Stamp& stamp) const {
    if (stamp.in_flight) return false;
    if (stamp.epoch < epoch || stamp.thread == thread.linear) return true;
    return !thread.seen.empty() && thread.seen[stamp.thread] >= stamp.time;
}

void Launch::release(Thread& thread, std::vector<u32>& into) const {
    if (into.empty()) into.assign(threads.size() + ASYNC_BARRIERS, 0);
    for (size_t i = 0; i < thread.seen.size(); i++) into[i] = std::max(into[i], thread.seen[i]);
    into[thread.linear] = std::max(into[thread.linear], thread.time);
    thread.time++;
}

void Launch::acquire(Thread& thread, const std::vector<u32>& from) const {
    if (from.empty()) return;
    if (thread.seen.empty()) thread.seen.assign(threads.size() + ASYNC_BARRIERS, 0);
    for (size_t i = 0; i < from.size(); i++) thread.seen[i] = std::max(thread.seen[i], from[i]);
}

void Launch::complete_barrier(Barrier& barrier, bool whole_block) {
    std::vector<u16> waiting;
    waiting.swap(barrier.waiting);
    if (whole_block) {
        epoch++;
        for (Thread& thread : threads) {
            thread.time = 1;
            thread.seen.clear();
        }
    } else {
        for (u16 thread : waiting) acquire(threads[thread], barrier.seen);
    }
    barrier = Barrier();
    for (u16 thread : waiting) {
        if (threads[thread].state == State::Waiting) wake(thread);
    }
}

void Launch::barrier(u32 id, u32 count, bool waits, Site site) {
    if (id >= NAMED_BARRIERS) fail("barrier " + std::to_string(id) + " does not exist", site);
    Barrier& barrier = barriers[id];
    bool whole_block = id == 0;
    if (!whole_block) {
        if (count == 0 || count % WARP_LANES != 0 || count > threads.size()) {
            fail("a named barrier takes a multiple of 32 threads of the block, not " +
                     std::to_string(count),
                 site);
        }
        if (barrier.arrived > 0 && barrier.threads != count) {
            fail("barrier " + std::to_string(id) + " waits for " +
                     std::to_string(barrier.threads) + " threads already, not " +
                     std::to_string(count),
                 site);
        }
        barrier.threads = count;
        release(*current, barrier.seen);
    }
    // Lanes of one warp that come to different barriers in the source are divergent, whatever the
    // counts say.
    if (barrier.sites.empty()) barrier.sites.assign(warps.size(), Site{nullptr, 0});
    Site& first = barrier.sites[current->warp];
    if (first.file == nullptr) first = site;
    if (first.line != site.line || first.file != site.file) {
        fail("divergent barrier: another lane of the warp came to it at " + first.text(), site);
    }
    barrier.arrived++;
    u32 expected = whole_block ? live : barrier.threads;
    if (waits) barrier.waiting.push_back(static_cast<u16>(current->linear));
    if (barrier.arrived == expected) {
        complete_barrier(barrier, whole_block);
    } else if (waits) {
        wait(whole_block ? "block barrier" : "named barrier", id, site);
    }
}

void Launch::gather(u32 mask, void* slot, const char* what,
                    void (*complete)(Launch&, u32 mask, Warp&), Site site) {
    Warp& warp = warps[current->warp];
    u32 own = 1u << current->lane;
    if ((mask & own) == 0) fail(std::string(what) + " by a lane that is not in its mask", site);
    u32 missing = static_cast<u32>(threads.size()) - current->warp * WARP_LANES;
    if (missing < WARP_LANES && (mask >> missing) != 0 && mask != ~0u) {
        fail(std::string(what) + " names lanes that the block does not have", site);
    }
    // The last warp may be partial; its missing lanes count as having left.
    u32 present = mask & warp.live;
    if (present != mask && missing >= WARP_LANES) {
        fail(std::string(what) + " names lanes that have left", site);
    }
    auto& all = warp.gatherings;
    auto same = [&](const Gathering& g) { return g.mask == mask; };
    auto found = std::find_if(all.begin(), all.end(), same);
    if (found == all.end()) {
        found = all.insert(all.end(), Gathering{mask, 0, what, site});
    } else if (found->what != what) {
        fail(std::string("lanes of one warp at different operations: ") + what + ", and " +
                 found->what + " at " + found->site.text(),
             site);
    }
    current->slot = slot;
    found->arrived |= own;
    if (found->arrived != present) {
        wait(what, mask, site);
        return;
    }
    u32 arrived = found->arrived;
    all.erase(found);
    complete(*this, arrived, warp);
    for (u32 lanes = arrived & ~own; lanes != 0; lanes &= lanes - 1) {
        wake(current->warp * WARP_LANES + static_cast<u32>(__builtin_ctz(lanes)));
    }
}

// Lanes of `mask` that the operation reads from outside it have no defined value on hardware;
// here they give poison.
void complete_shuffle(Launch& launch, u32 mask, Warp&) {
    for (u32 lanes = mask; lanes != 0; lanes &= lanes - 1) {
        auto& slot = *static_cast<ShuffleSlot*>(launch.slot_of(static_cast<u32>(__builtin_ctz(lanes))));
        bool there = (mask >> slot.source & 1) != 0;
        slot.result = there ? static_cast<ShuffleSlot*>(launch.slot_of(slot.source))->value : ~0u;
    }
}

void complete_vote(Launch& launch, u32 mask, Warp&) {
    u32 result = 0;
    for (u32 lanes = mask; lanes != 0; lanes &= lanes - 1) {
        u32 lane = static_cast<u32>(__builtin_ctz(lanes));
        if (static_cast<VoteSlot*>(launch.slot_of(lane))->value) result |= 1u << lane;
    }
    for (u32 lanes = mask; lanes != 0; lanes &= lanes - 1) {
        static_cast<VoteSlot*>(launch.slot_of(static_cast<u32>(__builtin_ctz(lanes))))->result = result;
    }
}

// The one warp operation that orders memory.
void complete_sync_warp(Launch& launch, u32 mask, Warp&) {
    std::vector<u32> seen;
    u32 first = launch.current->warp * WARP_LANES;
    for (u32 lanes = mask; lanes != 0; lanes &= lanes - 1) {
        launch.release(launch.threads[first + static_cast<u32>(__builtin_ctz(lanes))], seen);
    }
    for (u32 lanes = mask; lanes != 0; lanes &= lanes - 1) {
        launch.acquire(launch.threads[first + static_cast<u32>(__builtin_ctz(lanes))], seen);
    }
}

}  // namespace prelude::emu
