// SPDX-License-Identifier: MIT
#include "experiments/resources.hpp"
#include "support/catch.hpp"
#include "support/child_process.hpp"

#include <sys/mman.h>

#include <cstddef>
#include <fstream>
#include <sstream>
#include <string>

using unitscale::experiments::peak_resident_megabytes;

namespace {

constexpr std::size_t block_bytes = 256'000'000;

/// The measurements of a process that holds a block for a while.
struct Peaks {
    double before = 0.0, holding = 0.0, afterwards = 0.0;
    double by_the_system = 0.0;  ///< the peak afterwards, as text of the system; 0 if the system has no such text
};

/// Linux' own text about this process: "VmHWM:  2712 kB", where a kB is 1024 bytes.
double high_water_megabytes() {
    std::ifstream status("/proc/self/status");
    for (std::string word; status >> word;)
        if (double kilobytes = 0.0; word == "VmHWM:" && status >> kilobytes) return kilobytes * 1024e-6;
    return 0.0;
}

/// Measures in a child process, which has a peak of its own, independent of earlier tests. The block is mapped from the
/// system and filled, because allocators keep freed memory and sanitizers add to the memory in use.
Peaks measure() {
    unitscale::test::ChildProcess child([]() -> std::string {
        std::ostringstream text;
        text << peak_resident_megabytes() << ' ';
        void* block = ::mmap(nullptr, block_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (block == MAP_FAILED) return "no memory";
        // Written page by page: emulators leave the flag MAP_POPULATE out.
        for (std::size_t i = 0; i < block_bytes; i += 1024) static_cast<volatile char*>(block)[i] = 1;
        text << peak_resident_megabytes() << ' ';
        ::munmap(block, block_bytes);
        text << peak_resident_megabytes() << ' ' << high_water_megabytes();
        return text.str();
    });
    const std::string text = child.text();
    INFO("the child says: " << text);
    Peaks peaks;
    REQUIRE((std::istringstream(text) >> peaks.before >> peaks.holding >> peaks.afterwards >> peaks.by_the_system));
    return peaks;
}

}  // namespace

TEST_CASE("resources: the peak is in megabytes, holds a block that was used, and stays when it is given back") {
    const Peaks peaks = measure();
    const double block = static_cast<double>(block_bytes) * 1e-6;
    CHECK(peaks.before > 0.0);
    CHECK(peaks.holding >= 0.99 * block);
    CHECK(peaks.afterwards >= peaks.holding);
    // The unit is 10^6 bytes, and little else was used: an emulator's tables of the block's pages.
    CHECK(peaks.holding - peaks.before <= 1.02 * block);
#ifdef __linux__
    CHECK(peaks.holding - peaks.before >= 0.99 * block);
    if (peaks.by_the_system > 0.0) CHECK(peaks.afterwards == Approx(peaks.by_the_system).epsilon(0.01));
#endif
}
