// cp.async: bytes arrive when a thread waits for them, and not before.

#include <cstring>

#include "emu.h"

namespace prelude::emu {

void Launch::copy_async(u32 to, const void* from, bool valid, Site site) {
    // From now on the hardware may write; no thread may touch the place until the copy has landed.
    shadow.access(to, 16, Access::Write, {current, true, true}, site);
    current->open_copies.push_back({to, static_cast<const u8*>(from), valid, site});
}

void Launch::commit_copies() {
    current->copy_groups.emplace_back();
    current->copy_groups.back().swap(current->open_copies);
}

void Launch::wait_copies(u32 groups) {
    auto& under_way = current->copy_groups;
    while (under_way.size() > groups) {
        for (const Copy& copy : under_way.front()) {
            if (copy.valid) {
                check_global(copy.from, 16, Access::Read, copy.site);
                std::memcpy(shared + copy.to, copy.from, 16);
            } else {
                std::memset(shared + copy.to, 0, 16);
            }
            shadow.land(copy.to, 16);
        }
        under_way.pop_front();
    }
}

}  // namespace prelude::emu
