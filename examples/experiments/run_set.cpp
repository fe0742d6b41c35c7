// SPDX-License-Identifier: MIT
#include "experiments/run_set.hpp"

#include <unitscale/base/error.hpp>
#include <unitscale/io/atomic_file.hpp>

#include <algorithm>
#include <system_error>

namespace unitscale::experiments {

std::filesystem::path RunSetOptions::results_path() const {
    return std::filesystem::path(out).replace_extension(".jsonl");
}

std::filesystem::path RunSetOptions::unfinished() const {
    return std::filesystem::path(out).replace_extension(".runs");
}

void RunSetOptions::check_counts() const {
    check(seeds >= 1 && seeds <= 1000, "--seeds: is ", seeds, "; expected a number from 1 to 1000");
    check(jobs >= 1 && jobs <= 1000, "--jobs: is ", jobs, "; expected a number from 1 to 1000");
}

void RunSetOptions::check_out(std::string_view example) const {
    check(out.extension() != ".jsonl" && out.extension() != ".runs" && out.has_filename(), "--out: is ", out.string(),
          "; expected the name of a page, such as ", example);
    io::check_writable("--out", out);
}

std::size_t tenth_of(std::size_t steps) { return std::max<std::size_t>(steps / 10, 1); }

void remove_if_empty(const std::filesystem::path& folder) {
    std::error_code not_empty;  // stays where an unfinished run needs it
    std::filesystem::remove(folder, not_empty);
}

}  // namespace unitscale::experiments
