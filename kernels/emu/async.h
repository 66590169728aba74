// What runs beside the threads of a block on Hopper: barriers with phases, tensor copies, and products
// of warpgroups. Copies land, and sums are written, when somebody waits for them and not before.
#pragma once

#include <unordered_map>

#include "emu.h"

namespace prelude::emu {

// The most barriers with phases of a block. The copies at each barrier have a clock of their own; clocks
// have the numbers after those of threads.
constexpr u32 ASYNC_BARRIERS = 32;

// A matrix and the box that is copied of it: what the host writes in place of the driver's map, as
// TensorTile::emulated() in kernels/src/tensor_map.rs does.
struct EmulatedMap {
    u64 magic;
    u64 at;
    u64 columns, rows;
    u64 row_bytes;
    u64 box_columns, box_rows;
    u64 unused[9];
};
constexpr u64 MAP_MAGIC = 0x50414d4c45525021u;

struct TensorCopyAt {
    u32 to;  // offset in shared memory
    EmulatedMap map;
    u32 row, column;
    Site site;
};

struct PhaseBarrier {
    u32 index;
    u32 arrivals;  // arrivals that end a phase
    u32 missing;   // arrivals that the phase under way still needs
    i64 bytes = 0;  // bytes that are still to be copied before the phase ends
    u64 phase = 0;  // the number of the phase under way
    u32 clock = 0;  // the clock of this barrier's copies
    u32 epoch = 0;  // the epoch to which `seen` and `ended` belong
    bool is_fenced = false;
    Stamp made;
    std::vector<u32> seen;  // what the threads that arrived in this phase have seen
    std::vector<u32> ended;  // what a thread sees that waits for the last phase
    std::vector<u16> waiting;
    std::vector<TensorCopyAt> copies;
};

// One wgmma of a warp: its 16 rows of the warpgroup's 64.
struct Product {
    u64 a, b;
    u32 columns;
    bool has_registers;  // a lies in registers, and b in rows of n
    bool adds;
    float* d[WARP_LANES];
    const u32* registers[WARP_LANES];
    Site site;
};

// A lane's operands of a product.
struct ProductSlot {
    u64 a, b;
    u32 columns;
    bool has_registers, adds;
    float* d;
    const u32* registers;
    Site site;
};

struct ProductWaitSlot {
    u32 groups;
};

// The products of one warp.
struct WarpProducts {
    bool is_fenced = false;  // since the last group was committed
    std::vector<Product> open;
    std::deque<std::vector<Product>> groups;
    // The true values of registers that belong to products, by the first lane's address of them.
    struct Sums {
        std::vector<float> values;  // lane by lane
        u32 products = 0;           // products of these registers that are not done
    };
    std::unordered_map<const float*, Sums> sums;
    u32 count = 0;
};

class Async {
  public:
    explicit Async(Launch& launch) : launch_(launch) {}
    // Forgets everything, for a new block.
    void reset();
    // Describes an operation that is still under way when the block has ended; empty if none is.
    std::string unfinished() const;

    void init(u32 at, u32 arrivals, Site site);
    void fence_init();
    void arrive(u32 at, u32 bytes, Site site);
    void wait(u32 at, u32 parity, Site site);
    void copy(u32 to, const void* map, u32 row, u32 column, u32 barrier, Site site);
    void fence();

    void issue(u32 warp);
    void commit(u32 warp);
    void complete(u32 warp, u32 groups);
    void fence_products(u32 warp) { products_[warp].is_fenced = true; }

  private:
    PhaseBarrier& barrier(u32 at, Site site);
    // Returns the current step of the current thread.
    Stamp now(Site site) const;
    // Forgets what threads did before the last barrier of the block, which all have seen.
    void refresh(PhaseBarrier& barrier) const;
    // Ends the phase if nothing is missing.
    void settle(PhaseBarrier& barrier);
    void land(PhaseBarrier& barrier);
    void land(PhaseBarrier& barrier, const TensorCopyAt& copy);
    void multiply(u32 warp, const Product& product);
    void check_same(u32 warp, const Product& product);

    Launch& launch_;
    std::unordered_map<u32, PhaseBarrier> barriers_;
    std::vector<WarpProducts> products_;
    // For each warpgroup, the operands of its products so far: all four warps must have the same.
    std::vector<std::vector<std::pair<u64, u64>>> issued_;
};

void complete_product(Launch&, u32 mask, Warp&);
void complete_product_fence(Launch&, u32 mask, Warp&);
void complete_product_commit(Launch&, u32 mask, Warp&);
void complete_product_wait(Launch&, u32 mask, Warp&);

// Equal to `swizzled` of hopper.h.
inline u32 swizzle_128(u32 offset) { return offset ^ (offset >> 3 & 0x70); }

}  // namespace prelude::emu
