// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/base/error.hpp>

#include <nlohmann/json.hpp>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <ios>
#include <utility>

namespace unitscale::io {

/// JSON has no NaN and no infinity: replaces such numbers, at any depth, by the strings "nan", "inf" and "-inf".
/// Test: tests/io/json_log_test.cpp
inline void name_non_finite_numbers(nlohmann::ordered_json& value) {
    if (value.is_structured()) {
        for (auto& element : value) name_non_finite_numbers(element);
    } else if (value.is_number_float()) {
        const auto number = value.get<double>();
        if (std::isnan(number)) value = "nan";
        else if (std::isinf(number)) value = number > 0 ? "inf" : "-inf";
    }
}

/// A log of JSON lines: one object per line, keys in the order given, each line complete on the disk's side of the
/// stream when `write` returns, so that a run that is killed leaves whole lines.
///   JsonLog log("run.jsonl");
///   log.write({{"step", 1}, {"loss", 2.5}});
/// An entry header: it needs nlohmann-json. Errors, naming the path: the file cannot be opened or written; a line that is
/// not an object. Test: tests/io/json_log_test.cpp
class JsonLog {
public:
    /// Opens the file and empties it, or with `append` goes on where it ends.
    explicit JsonLog(std::filesystem::path path, bool append = false)
        : path_(std::move(path)), file_(path_, std::ios::binary | (append ? std::ios::app : std::ios::trunc)) {
        check(file_.is_open(), "log: ", path_.string(), " cannot be opened for writing");
    }

    void write(nlohmann::ordered_json line) {
        check(line.is_object(), "log: ", path_.string(), ": a line is an object, not ", line.type_name());
        name_non_finite_numbers(line);
        file_ << line.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) << '\n';
        file_.flush();
        check(file_.good(), "log: ", path_.string(), " cannot be written");
    }

private:
    std::filesystem::path path_;
    std::ofstream file_;
};

}  // namespace unitscale::io
