// SPDX-License-Identifier: MIT
#include "experiments/results_file.hpp"

#include <unitscale/base/error.hpp>
#include <unitscale/base/random.hpp>
#include <unitscale/io/json_recipe.hpp>

#include <cstddef>
#include <cstdio>
#include <fstream>
#include <ios>
#include <iterator>
#include <utility>

namespace unitscale::experiments {

std::string fingerprint(std::string_view text) {
    char digits[17];
    std::snprintf(digits, sizeof digits, "%016llx", static_cast<unsigned long long>(hash_name(text)));
    return digits;
}

std::string fingerprint(const Recipe& recipe) { return fingerprint(io::recipe_to_json(recipe).dump()); }

ResultsFile::ResultsFile(std::filesystem::path path, std::string kind, const Json& settings,
                         const std::function<void(const Json&)>& read)
    : path_(std::move(path)), kind_(std::move(kind)) {
    lock_ = io::open_for_one_writer(path_);
    check(lock_.is_open(), where(), " cannot be opened for writing");
    check(io::lock(lock_), where(), " is in use by another process");
    std::ifstream stream(path_, std::ios::binary);
    const std::string text{std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()};
    const std::string head = Json{{kind_, settings}}.dump();
    std::size_t begin = 0, number = 0;
    for (std::size_t end = text.find('\n'); end != std::string::npos; begin = end + 1, end = text.find('\n', begin)) {
        const Json line = Json::parse(text.substr(begin, end - begin), nullptr, false);
        if (++number == 1) {
            check_settings(line, settings);
            continue;
        }
        try {
            read(line);
        } catch (const nlohmann::json::exception&) {
            fail(where(), ": line ", number, " is not that of a run");
        }
    }
    check(begin > 0 || head.starts_with(text), where(), " is not the file of a ", kind_, "; choose another --out");
    if (begin < text.size()) std::filesystem::resize_file(path_, begin);
    log_ = std::make_unique<io::JsonLog>(path_, true);
    if (begin == 0) log_->write({{kind_, settings}});
}

void ResultsFile::check_settings(const Json& line, const Json& settings) const {
    check(line.is_object() && line.contains(kind_) && line[kind_].is_object(), where(), " is not the file of a ", kind_,
          "; choose another --out");
    const Json& known = line[kind_];
    const auto of = [](const Json& all, const std::string& name) {
        return all.contains(name) ? all[name] : Json("not set");
    };
    const auto compare = [&](const std::string& name) {
        const Json there = of(known, name), here = of(settings, name);
        check(there == here, where(), " is of another ", kind_, ": its ", name, " is ", there.dump(), ", not ",
              here.dump(), "; choose another --out");
    };
    for (const auto& [name, value] : settings.items()) compare(name);
    for (const auto& [name, value] : known.items()) compare(name);
}

}  // namespace unitscale::experiments
