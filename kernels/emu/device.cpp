// Device memory on the host: bounds of every allocation, canaries around it, and who wrote what.

#include <algorithm>
#include <cstring>

#include "emu.h"

namespace prelude::emu {

// The alignment of cudaMalloc.
constexpr size_t ALIGN = 256;
constexpr size_t CANARY_BYTES = 256;
constexpr u8 CANARY = 0xa5;

u64 Device::allocate(size_t bytes) {
    auto made = std::make_unique<Allocation>();
    size_t room = (bytes + ALIGN - 1) / ALIGN * ALIGN;
    made->storage.reset(new u8[room + 2 * CANARY_BYTES + ALIGN]);
    auto first = reinterpret_cast<uintptr_t>(made->storage.get()) + CANARY_BYTES;
    made->data = reinterpret_cast<u8*>((first + ALIGN - 1) / ALIGN * ALIGN);
    made->bytes = bytes;
    std::memset(made->data, POISON, bytes);
    std::memset(made->data - CANARY_BYTES, CANARY, CANARY_BYTES);
    std::memset(made->data + bytes, CANARY, CANARY_BYTES);
    auto at = reinterpret_cast<u64>(made->data);
    auto later = [](const std::unique_ptr<Allocation>& a, const u8* p) { return a->data < p; };
    auto place = std::lower_bound(allocations_.begin(), allocations_.end(), made->data, later);
    allocations_.insert(place, std::move(made));
    return at;
}

bool Device::free(u64 at) {
    for (auto it = allocations_.begin(); it != allocations_.end(); ++it) {
        if (reinterpret_cast<u64>((*it)->data) != at) continue;
        std::fill(std::begin(cache_), std::end(cache_), nullptr);
        allocations_.erase(it);
        return true;
    }
    return false;
}

Allocation* Device::find(u64 at, size_t bytes) {
    auto holds = [&](const Allocation& a) {
        auto begin = reinterpret_cast<u64>(a.data);
        return at >= begin && bytes <= a.bytes && at - begin <= a.bytes - bytes;
    };
    Allocation*& cached = cache_[(at >> 8) % CACHE];
    if (cached != nullptr && holds(*cached)) return cached;
    auto later = [](u64 p, const std::unique_ptr<Allocation>& a) {
        return p < reinterpret_cast<u64>(a->data);
    };
    auto after = std::upper_bound(allocations_.begin(), allocations_.end(), at, later);
    if (after == allocations_.begin()) return nullptr;
    Allocation* found = std::prev(after)->get();
    if (!holds(*found)) return nullptr;
    return cached = found;
}

const Allocation* Device::last_before(u64 at) const {
    const Allocation* last = nullptr;
    for (const auto& a : allocations_) {
        if (reinterpret_cast<u64>(a->data) <= at) last = a.get();
    }
    return last;
}

bool Device::canaries_intact(std::string* damage) const {
    u8 expected[CANARY_BYTES];
    std::memset(expected, CANARY, CANARY_BYTES);
    for (const auto& a : allocations_) {
        bool before = std::memcmp(a->data - CANARY_BYTES, expected, CANARY_BYTES) == 0;
        bool behind = std::memcmp(a->data + a->bytes, expected, CANARY_BYTES) == 0;
        if (before && behind) continue;
        *damage = "memory " + std::string(before ? "behind" : "before") + " an allocation of " +
                  std::to_string(a->bytes) + " bytes was overwritten, by an access past the checks";
        return false;
    }
    return true;
}

static std::string name(Access kind) {
    return kind == Access::Read ? "read" : kind == Access::Write ? "write" : "atomic update";
}

void Launch::check_global(const void* at, size_t bytes, Access kind, Site site) {
    auto address = reinterpret_cast<u64>(at);
    if (address % bytes != 0) {
        fail("misaligned " + name(kind) + " of " + std::to_string(bytes) + " bytes", site);
    }
    Allocation* a = device.find(address, bytes);
    if (a == nullptr) {
        std::string near = "; nothing is allocated before it";
        if (const Allocation* before = device.last_before(address)) {
            auto offset = static_cast<int64_t>(address - reinterpret_cast<u64>(before->data));
            near = ", at byte " + std::to_string(offset) + " of an allocation of " +
                   std::to_string(before->bytes);
        }
        fail(name(kind) + " of " + std::to_string(bytes) + " bytes out of bounds" + near, site);
    }
    if (request.extents != nullptr) {
        bool fine = false;
        for (size_t i = 0; i < request.extent_count && !fine; i++) {
            const Extent& e = request.extents[i];
            bool inside = address >= e.at && address + bytes <= e.at + e.bytes;
            fine = inside && (kind == Access::Read || e.writable != 0);
        }
        if (!fine) {
            fail(name(kind) + " of " + std::to_string(bytes) +
                     " bytes outside what the launch said it touches",
                 site);
        }
    }
    if (!current->has_waited) {
        if (kind != Access::Read) fail(name(kind) + " ahead of dep_wait()", site);
        // Launches after the host's last copy may still run.
        bool is_recent = a->written_in > device.settled && a->written_in < device.launches;
        const u32* writer = a->writer.data() + (address - reinterpret_cast<u64>(a->data));
        for (size_t i = 0; is_recent && i < bytes; i++) {
            if (writer[i] != 0) {
                fail("read ahead of dep_wait() of what a launch before wrote", site);
            }
        }
    }
    if (kind == Access::Atomic) return;
    if (a->written_in != device.launches) {
        if (kind == Access::Read) return;
        a->writer.assign(a->bytes, 0);
        a->written_in = device.launches;
    }
    u32* writer = a->writer.data() + (address - reinterpret_cast<u64>(a->data));
    u32 own = block_number + 1;
    for (size_t i = 0; i < bytes; i++) {
        if (writer[i] != 0 && writer[i] != own) {
            fail("race between blocks: " + name(kind) + " of what block number " +
                     std::to_string(writer[i] - 1) + " wrote in this launch",
                 site);
        }
        if (kind == Access::Write) writer[i] = own;
    }
}

u32 Launch::check_shared(const void* at, size_t bytes, Access kind, Site site) {
    u32 offset = shared_offset(at, bytes, site);
    shadow.access(offset, bytes, kind, {current, false, true}, site);
    return offset;
}

u32 Launch::shared_offset(const void* at, size_t bytes, Site site) {
    auto address = reinterpret_cast<uintptr_t>(at);
    auto begin = reinterpret_cast<uintptr_t>(shared);
    if (address < begin || address + bytes > begin + shared_bytes) {
        fail("access to " + std::to_string(bytes) + " bytes out of bounds of the " +
                 std::to_string(shared_bytes) + " bytes of shared memory, at " +
                 std::to_string(static_cast<int64_t>(address - begin)),
             site);
    }
    if (address % (bytes < 16 ? bytes : 16) != 0) {
        fail("misaligned access to " + std::to_string(bytes) + " bytes of shared memory", site);
    }
    return static_cast<u32>(address - begin);
}

void* Launch::static_shared(const void* key, size_t bytes, size_t align) {
    for (const StaticShared& known : statics_) {
        if (known.key == key) return shared + known.offset;
    }
    u32 offset = (static_end_ + static_cast<u32>(align) - 1) / static_cast<u32>(align) *
                 static_cast<u32>(align);
    static_end_ = offset + static_cast<u32>(bytes);
    if (static_end_ > SHARED_BYTES_MAX) {
        fail("more than 227 KB of shared memory", Site{nullptr, 0});
    }
    shared_bytes = static_end_;
    std::memset(shared + offset, POISON, bytes);
    shadow.grow(static_end_);
    statics_.push_back({key, offset});
    return shared + offset;
}

}  // namespace prelude::emu
