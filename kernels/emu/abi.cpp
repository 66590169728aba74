// The functions that Rust calls; kernels/src/emu/ffi.rs declares them.

#include <algorithm>
#include <cstring>

#include "emu.h"

namespace prelude::emu {

std::vector<KernelInfo>& kernels() {
    static std::vector<KernelInfo> all;
    return all;
}

std::vector<ParamsInfo>& params() {
    static std::vector<ParamsInfo> all;
    return all;
}

struct CLaunch {
    const char* kernel;
    const void* params;
    u64 params_bytes;
    Dim3 grid, block;
    u32 shared_bytes;
    u32 order;
    u64 seed;
    const Extent* extents;
    u64 extent_count;
};

static u32 fail(char* message, u64 room, const std::string& what) {
    size_t n = std::min<size_t>(what.size(), room > 0 ? room - 1 : 0);
    if (room > 0) {
        std::memcpy(message, what.data(), n);
        message[n] = 0;
    }
    return 1;
}

static u32 launch(Device& device, const CLaunch& c, char* message, u64 room) {
    const KernelInfo* kernel = nullptr;
    for (const KernelInfo& known : kernels()) {
        if (std::strcmp(known.name, c.kernel) == 0) kernel = &known;
    }
    auto fault = [&](const std::string& what) {
        return fail(message, room, std::string(c.kernel) + ": " + what);
    };
    if (kernel == nullptr) return fault("there is no such kernel in the emulation library");
    if (c.params_bytes != kernel->params_bytes) {
        return fault("takes " + std::to_string(kernel->params_bytes) + " bytes of parameters, got " +
                     std::to_string(c.params_bytes));
    }
    u64 threads = c.block.count();
    if (threads == 0 || threads > kernel->threads_max) {
        return fault("takes at most " + std::to_string(kernel->threads_max) +
                     " threads a block, got " + std::to_string(threads));
    }
    // CUDA's own limits; no test comes near 2^32 blocks.
    if (c.grid.count() == 0 || c.grid.count() > 0xffffffffu || c.grid.y > 65535 || c.grid.z > 65535) {
        return fault("the grid is empty or too large");
    }
    if (c.shared_bytes > SHARED_BYTES_MAX) return fault("more than 227 KB of shared memory");
    if (c.order > 3) return fault("there is no such order");
    LaunchRequest request{kernel,         c.params,
                          c.grid,         c.block,
                          c.shared_bytes, static_cast<Order>(c.order),
                          c.seed,         c.extents,
                          static_cast<size_t>(c.extent_count)};
    Launch run(device, request);
    return run.run() ? 0 : fault(run.fault);
}

}  // namespace prelude::emu

using namespace prelude::emu;

extern "C" {

Device* prelude_emu_open() { return new Device(); }
void prelude_emu_close(Device* device) { delete device; }
u64 prelude_emu_allocate(Device* device, u64 bytes) { return device->allocate(bytes); }
u32 prelude_emu_free(Device* device, u64 at) { return device->free(at) ? 0 : 1; }

u32 prelude_emu_write(Device* device, u64 to, const void* from, u64 bytes) {
    if (bytes == 0) return 0;
    if (device->find(to, bytes) == nullptr) return 1;
    device->settled = device->launches;
    std::memcpy(reinterpret_cast<void*>(to), from, bytes);
    return 0;
}
u32 prelude_emu_read(Device* device, u64 from, void* to, u64 bytes) {
    if (bytes == 0) return 0;
    if (device->find(from, bytes) == nullptr) return 1;
    device->settled = device->launches;
    std::memcpy(to, reinterpret_cast<const void*>(from), bytes);
    return 0;
}
u32 prelude_emu_fill(Device* device, u64 at, u32 byte, u64 bytes) {
    if (bytes == 0) return 0;
    if (device->find(at, bytes) == nullptr) return 1;
    std::memset(reinterpret_cast<void*>(at), static_cast<int>(byte), bytes);
    return 0;
}

u32 prelude_emu_launch(Device* device, const CLaunch* c, char* message, u64 room) {
    return launch(*device, *c, message, room);
}

// The tables of kernels and parameter structs; they return null after the last entry.
const char* prelude_emu_kernel(u64 i, const char** params_name, u32* threads_max) {
    if (i >= kernels().size()) return nullptr;
    *params_name = kernels()[i].params_name;
    *threads_max = kernels()[i].threads_max;
    return kernels()[i].name;
}
const char* prelude_emu_params(u64 i, u32* bytes) {
    if (i >= params().size()) return nullptr;
    *bytes = params()[i].bytes;
    return params()[i].name;
}
const char* prelude_emu_field(u64 i, u64 field, u32* offset, u32* bytes) {
    if (i >= params().size() || field >= params()[i].fields.size()) return nullptr;
    const Field& f = params()[i].fields[field];
    *offset = f.offset;
    *bytes = f.bytes;
    return f.name;
}

}  // extern "C"
