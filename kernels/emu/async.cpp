// Barriers with phases, and tensor copies, which land as late as they can: when a thread waits for
// their barrier.

#include "async.h"

#include <algorithm>
#include <cstring>

namespace prelude::emu {

void Async::reset() {
    barriers_.clear();
    products_.assign(launch_.warps.size(), WarpProducts());
    issued_.assign((launch_.warps.size() + 3) / 4, {});
}

std::string Async::unfinished() const {
    for (const auto& [at, barrier] : barriers_) {
        if (!barrier.copies.empty()) {
            return "the block ended with a copy under way, of " + barrier.copies[0].site.text();
        }
    }
    for (const WarpProducts& warp : products_) {
        const Product* left = !warp.open.empty()     ? &warp.open[0]
                              : !warp.groups.empty() ? &warp.groups[0][0]
                                                     : nullptr;
        if (left != nullptr) {
            return "the block ended with a product under way, of " + left->site.text();
        }
    }
    for (size_t group = 0; group < issued_.size(); group++) {
        for (size_t i = 0; i < 4 && 4 * group + i < products_.size(); i++) {
            if (products_[4 * group + i].count != issued_[group].size()) {
                return "warps of one warpgroup took part in different numbers of products";
            }
        }
    }
    return "";
}

PhaseBarrier& Async::barrier(u32 at, Site site) {
    auto found = barriers_.find(at);
    if (found == barriers_.end()) launch_.fail("there is no mbarrier here: it was not made", site);
    launch_.shadow.access(at, 8, Access::Atomic, {launch_.current, false, true}, site);
    if (!launch_.has_seen(*launch_.current, found->second.made)) {
        launch_.fail("race: an mbarrier is used without a barrier after it was made at " +
                         found->second.made.site.text(),
                     site);
    }
    refresh(found->second);
    return found->second;
}

void Async::refresh(PhaseBarrier& barrier) const {
    if (barrier.epoch == launch_.epoch) return;
    barrier.epoch = launch_.epoch;
    for (std::vector<u32>* seen : {&barrier.seen, &barrier.ended}) {
        size_t threads = std::min(seen->size(), launch_.threads.size());
        std::fill_n(seen->begin(), threads, 0u);
    }
}

void Async::init(u32 at, u32 arrivals, Site site) {
    if (arrivals == 0 || arrivals >= 1u << 20) launch_.fail("an mbarrier of no such count", site);
    launch_.shadow.access(at, 8, Access::Write, {launch_.current, false, true}, site);
    if (barriers_.count(at) != 0) launch_.fail("an mbarrier is made where one is", site);
    if (barriers_.size() == ASYNC_BARRIERS) launch_.fail("more mbarriers than are emulated", site);
    PhaseBarrier made{};
    made.index = static_cast<u32>(barriers_.size());
    made.arrivals = made.missing = arrivals;
    made.made = now(site);
    barriers_.emplace(at, std::move(made));
}

void Async::fence_init() {
    for (auto& [at, barrier] : barriers_) {
        if (barrier.made.thread == launch_.current->linear) barrier.is_fenced = true;
    }
}

void Async::settle(PhaseBarrier& barrier) {
    if (barrier.missing != 0 || barrier.bytes != 0) return;
    barrier.phase++;
    barrier.missing = barrier.arrivals;
    barrier.ended.swap(barrier.seen);
    barrier.seen.clear();
    std::vector<u16> waiting;
    waiting.swap(barrier.waiting);
    for (u16 thread : waiting) launch_.wake(thread);
}

void Async::land(PhaseBarrier& barrier, const TensorCopyAt& copy) {
    const EmulatedMap& map = copy.map;
    u32 bytes = static_cast<u32>(map.box_columns * map.box_rows * 2);
    for (u32 r = 0; r < map.box_rows; r++) {
        for (u32 c = 0; c < map.box_columns; c += 8) {
            u8* to = launch_.shared + swizzle_128(copy.to + r * 128 + c * 2);
            u64 row = u64(copy.row) + r, column = u64(copy.column) + c;
            if (row < map.rows && column < map.columns) {
                auto from = reinterpret_cast<const u8*>(map.at + row * map.row_bytes + column * 2);
                std::memcpy(to, from, 16);
            } else {
                std::memset(to, 0, 16);
            }
        }
    }
    u32 clock = static_cast<u32>(launch_.threads.size()) + barrier.index;
    barrier.clock++;
    launch_.shadow.land_copy(copy.to, bytes, clock, barrier.clock);
    if (barrier.seen.empty()) barrier.seen.assign(launch_.threads.size() + ASYNC_BARRIERS, 0);
    barrier.seen[clock] = barrier.clock;
    barrier.bytes -= bytes;
}

void Async::land(PhaseBarrier& barrier) {
    std::vector<TensorCopyAt> copies;
    copies.swap(barrier.copies);
    for (const TensorCopyAt& copy : copies) land(barrier, copy);
    if (!copies.empty()) settle(barrier);
}

void Async::arrive(u32 at, u32 bytes, Site site) {
    PhaseBarrier& on = barrier(at, site);
    if (on.missing == 0) launch_.fail("more arrivals at an mbarrier than its phase has", site);
    launch_.release(*launch_.current, on.seen);
    on.bytes += bytes;
    on.missing--;
    settle(on);
    if (!on.waiting.empty()) land(on);
}

void Async::wait(u32 at, u32 parity, Site site) {
    // Parities go by the phase under way: a thread that is two phases behind waits for ever, as on
    // hardware.
    for (;;) {
        PhaseBarrier& on = barrier(at, site);
        if ((on.phase & 1) == parity) land(on);
        if ((on.phase & 1) != parity) {
            launch_.acquire(*launch_.current, on.ended);
            return;
        }
        on.waiting.push_back(static_cast<u16>(launch_.current->linear));
        launch_.wait("mbarrier", at, site);
    }
}

void Async::copy(u32 to, const void* map, u32 row, u32 column, u32 at, Site site) {
    TensorCopyAt made{to, {}, row, column, site};
    std::memcpy(&made.map, map, sizeof made.map);
    const EmulatedMap& m = made.map;
    if (m.magic != MAP_MAGIC) launch_.fail("a tensor map that was not made", site);
    if (to % 128 != 0) launch_.fail("a copy to no multiple of 128 bytes", site);
    if (column % 8 != 0) launch_.fail("a copy from no multiple of 16 bytes", site);
    u64 bytes = m.box_columns * m.box_rows * 2;
    if (to + bytes > launch_.shared_bytes) launch_.fail("a copy beyond shared memory", site);
    for (u64 r = row; r < u64(row) + m.box_rows && r < m.rows; r++) {
        for (u64 c = column; c < u64(column) + m.box_columns && c < m.columns; c += 8) {
            auto from = reinterpret_cast<const void*>(m.at + r * m.row_bytes + c * 2);
            launch_.check_global(from, 16, Access::Read, site);
        }
    }
    PhaseBarrier& on = barrier(at, site);
    if (!on.is_fenced) launch_.fail("a copy counts at an mbarrier made without a fence", site);
    // From now on the hardware may write; no thread may touch the place until the copy has landed.
    launch_.shadow.access(to, bytes, Access::Write, {launch_.current, true, false}, site);
    on.copies.push_back(made);
    if (!on.waiting.empty()) land(on);
}

void Async::fence() {
    launch_.current->fences.push_back(now(Site{nullptr, 0}));
}

Stamp Async::now(Site site) const {
    Stamp stamp;
    stamp.epoch = launch_.epoch;
    stamp.time = launch_.current->time;
    stamp.thread = static_cast<u16>(launch_.current->linear);
    stamp.valid = true;
    stamp.site = site;
    return stamp;
}

}  // namespace prelude::emu
