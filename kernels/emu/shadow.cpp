// Finds races in shared memory: two accesses to the same bytes, one of them a write, by threads of
// which neither has seen the other's access. A race is reported even when the values come out right.

#include "emu.h"

namespace prelude::emu {

constexpr size_t CHUNK = 16;

void Shadow::reset(size_t bytes) {
    chunks_.clear();
    grow(bytes);
}

void Shadow::grow(size_t bytes) { chunks_.resize((bytes + CHUNK - 1) / CHUNK); }

static std::string describe(const Stamp& stamp, const char* verb) {
    // Clocks of copies have the numbers after those of threads.
    bool is_copy = stamp.thread >= running->threads.size();
    std::string who = is_copy ? "a copy" : "thread " + std::to_string(stamp.thread);
    return std::string(verb) + " by " + who + " at " + stamp.site.text() +
           (stamp.in_flight ? ", still under way" : "");
}

// Returns whether a copy or product of `thread` sees `write`, a thread's own access: the writer has
// called fence_async() since.
static bool is_fenced(const Launch& launch, const Thread& thread, const Stamp& write) {
    const auto& fences = launch.threads[write.thread].fences;
    return write.fences < fences.size() && launch.has_seen(thread, fences[write.fences]);
}

void Shadow::touch(Touch& touch, size_t offset, Access kind, Toucher by, Site site) {
    Launch& launch = *running;
    const Thread& thread = *by.thread;
    auto race = [&](const Stamp& other, const char* verb) {
        const char* what = kind == Access::Read    ? "read"
                           : kind == Access::Write ? "write"
                                                   : "atomic update";
        launch.fail("race in shared memory: " + std::string(what) + " of byte " +
                        std::to_string(offset) + " without a barrier after the " +
                        describe(other, verb),
                    site);
    };
    const Stamp& write = touch.write;
    bool both_atomic = kind == Access::Atomic && write.atomic;
    if (write.valid && !both_atomic && !launch.has_seen(thread, write)) race(write, "write");
    if (!by.generic && write.valid && write.generic && !is_fenced(launch, thread, write)) {
        launch.fail("byte " + std::to_string(offset) +
                        " of shared memory is used beside the threads, without fence_async() after the " +
                        describe(write, "write"),
                    site);
    }
    Stamp now;
    now.in_flight = by.in_flight;
    now.generic = by.generic;
    now.fences = static_cast<u32>(thread.fences.size());
    now.epoch = launch.epoch;
    now.time = thread.time;
    now.thread = static_cast<u16>(thread.linear);
    now.valid = true;
    now.site = site;
    if (kind == Access::Read) {
        // Only two readers are kept: a later writer that has not seen all readers has, except in
        // contrived cases, not seen one of these two.
        Stamp& first = touch.reads[0];
        if (!first.valid || first.thread == now.thread || launch.has_seen(thread, first)) {
            first = now;
        } else {
            touch.reads[1] = now;
        }
        return;
    }
    for (const Stamp& read : touch.reads) {
        if (read.valid && !launch.has_seen(thread, read)) race(read, "read");
    }
    now.atomic = kind == Access::Atomic;
    touch.write = now;
    touch.reads[0] = touch.reads[1] = Stamp();
}

void Shadow::split(Chunk& chunk, u8 grain) {
    size_t count = CHUNK / grain;
    auto parts = std::make_unique<Touch[]>(count);
    for (size_t i = 0; i < count; i++) {
        parts[i] = chunk.parts ? chunk.parts[i * grain / chunk.grain] : chunk.whole;
    }
    chunk.parts = std::move(parts);
    chunk.grain = grain;
}

template <class F>
void Shadow::each(size_t offset, size_t bytes, F f) {
    // Accesses are aligned to their size, or to 16 bytes if larger, so each falls on whole parts.
    u8 grain = bytes < CHUNK ? static_cast<u8>(bytes) : CHUNK;
    for (size_t at = offset; at < offset + bytes;) {
        Chunk& chunk = chunks_[at / CHUNK];
        if (grain < chunk.grain) split(chunk, grain);
        if (chunk.grain == CHUNK) {
            f(chunk.whole, at);
        } else {
            f(chunk.parts[at % CHUNK / chunk.grain], at);
        }
        at += chunk.grain;
    }
}

void Shadow::access(size_t offset, size_t bytes, Access kind, Toucher by, Site site) {
    each(offset, bytes, [&](Touch& t, size_t at) { touch(t, at, kind, by, site); });
}

void Shadow::land(size_t offset, size_t bytes) {
    const Thread& thread = *running->current;
    each(offset, bytes, [&](Touch& t, size_t) {
        t.write.in_flight = false;
        t.write.epoch = running->epoch;
        t.write.time = thread.time;
        t.write.thread = static_cast<u16>(thread.linear);
        t.write.fences = static_cast<u32>(thread.fences.size());
    });
}

void Shadow::land_copy(size_t offset, size_t bytes, u32 clock, u32 time) {
    each(offset, bytes, [&](Touch& t, size_t) {
        t.write.in_flight = false;
        t.write.epoch = running->epoch;
        t.write.time = time;
        t.write.thread = static_cast<u16>(clock);
    });
}

void Shadow::end_reads(size_t offset, size_t bytes, const Thread& thread) {
    each(offset, bytes, [&](Touch& t, size_t) {
        for (Stamp& read : t.reads) {
            if (!read.valid || !read.in_flight || read.thread != thread.linear) continue;
            read.in_flight = false;
            read.epoch = running->epoch;
            read.time = thread.time;
        }
    });
}

}  // namespace prelude::emu
