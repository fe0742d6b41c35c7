// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/base/error.hpp>
#include <unitscale/base/random.hpp>
#include <unitscale/io/atomic_file.hpp>
#include <unitscale/io/json_log.hpp>
#include <unitscale/io/json_recipe.hpp>
#include <unitscale/scaling/recipe.hpp>

#include <nlohmann/json.hpp>

#include <fcntl.h>
#include <sys/file.h>

#include <cstddef>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <functional>
#include <ios>
#include <iterator>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

// The file that remembers what is done of many runs, so that a killed program goes on:
//   {"sweep":{"text":"2b5e...","width":128,...}}    what all of them share
//   {"run":{"lr":0.5,"seed":1,...}}                 one line for each thing that has ended
namespace unitscale::experiments {

/// A number that stands for a text: 16 hexadecimal digits.
[[nodiscard]] inline std::string fingerprint(std::string_view text) {
    char digits[17];
    std::snprintf(digits, sizeof digits, "%016llx", static_cast<unsigned long long>(hash_name(text)));
    return digits;
}
[[nodiscard]] inline std::string fingerprint(const Recipe& recipe) {
    return fingerprint(io::recipe_to_json(recipe).dump());
}

/// Reads a value that JsonLog has written. JSON has no NaN and no infinity; it has written their names: both are read as NaN.
template <class Value>
void read_logged(const nlohmann::ordered_json& json, Value& value) {
    const auto number_of = [](const nlohmann::ordered_json& number) {
        return number.is_string() ? std::numeric_limits<double>::quiet_NaN() : number.get<double>();
    };
    if constexpr (std::is_same_v<Value, double>) {
        value = number_of(json);
    } else if constexpr (std::is_same_v<Value, std::vector<double>>) {
        for (const auto& element : json) value.push_back(number_of(element));
    } else {
        json.get_to(value);
    }
}

/// A file of records. While it is open no other process can open it as such. A last line that a killed process has left unfinished is
/// dropped. Test: tests/experiments/record_file_test.cpp
class RecordFile {
public:
    using Json = nlohmann::ordered_json;

    /// Opens the file, or makes it; `settings` is what all records must share, and `read` gets the line of each. `kind` names in
    /// errors, and in the file, what its records are of. Errors: the file is of no such kind, or of another one, is in use or
    /// damaged (`read` throws Json::exception), or cannot be written.
    RecordFile(std::filesystem::path path, std::string kind, const Json& settings,
               const std::function<void(const Json&)>& read)
        : path_(std::move(path)), kind_(std::move(kind)) {
        lock_ = io::FileDescriptor(::open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666));
        check(lock_.is_open(), where(), " cannot be opened for writing");
        check(::flock(lock_.number(), LOCK_EX | LOCK_NB) == 0, where(), " is in use by another process");
        std::ifstream stream(path_, std::ios::binary);
        const std::string text{std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()};
        const std::string head = Json{{kind_, settings}}.dump();
        std::size_t begin = 0, number = 0;
        for (std::size_t end = text.find('\n'); end != std::string::npos;
             begin = end + 1, end = text.find('\n', begin)) {
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

    /// Adds a line, whole on the disk's side of the stream when this returns. Error: it cannot be written.
    void write(Json line) { log_->write(std::move(line)); }

    /// How error messages about the file begin.
    [[nodiscard]] std::string where() const { return kind_ + ": " + path_.string(); }

private:
    void check_settings(const Json& line, const Json& settings) const {
        check(line.is_object() && line.contains(kind_) && line[kind_].is_object(), where(), " is not the file of a ",
              kind_, "; choose another --out");
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

    std::filesystem::path path_;
    std::string kind_;
    io::FileDescriptor lock_{};
    std::unique_ptr<io::JsonLog> log_{};
};

}  // namespace unitscale::experiments
