// Races in shared memory: two accesses to the same bytes, one of them a write, by threads of
// which neither has seen the other's. Reported even when the values come out right.

#include "emu.h"

namespace prelude::emu {

constexpr size_t CHUNK = 16;

void Shadow::reset(size_t bytes) {
    chunks_.clear();
    grow(bytes);
}

void Shadow::grow(size_t bytes) { chunks_.resize((bytes + CHUNK - 1) / CHUNK); }

static std::string describe(const Stamp& stamp, const char* verb) {
    return std::string(verb) + " by thread " + std::to_string(stamp.thread) + " at " +
           stamp.site.text() + (stamp.in_flight ? ", still under way" : "");
}

void Shadow::touch(Touch& touch, size_t offset, Access kind, bool in_flight, Site site) {
    Launch& launch = *running;
    const Thread& thread = *launch.current;
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
    Stamp now;
    now.epoch = launch.epoch;
    now.time = thread.time;
    now.thread = static_cast<u16>(thread.linear);
    now.valid = true;
    now.site = site;
    if (kind == Access::Read) {
        // Two readers are kept: whoever writes next without having seen all readers is, but for
        // contrived cases, behind on one of these.
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
    now.in_flight = in_flight;
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

void Shadow::access(size_t offset, size_t bytes, Access kind, bool in_flight, Site site) {
    each(offset, bytes, [&](Touch& t, size_t at) { touch(t, at, kind, in_flight, site); });
}

void Shadow::land(size_t offset, size_t bytes) {
    const Thread& thread = *running->current;
    each(offset, bytes, [&](Touch& t, size_t) {
        t.write.in_flight = false;
        t.write.epoch = running->epoch;
        t.write.time = thread.time;
        t.write.thread = static_cast<u16>(thread.linear);
    });
}

}  // namespace prelude::emu
