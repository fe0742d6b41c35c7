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

/// Replaces NaN and infinities, at any depth, by the strings "nan", "inf" and "-inf": JSON has no such numbers.
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

/// A log of JSON lines: one object per line, keys in the given order. `write` flushes each line to the operating
/// system, so that a killed run leaves whole lines.
///   JsonLog log("run.jsonl");
///   log.write({{"step", 1}, {"loss", 2.5}});
/// The header needs nlohmann-json. Errors, naming the path: the file cannot be opened or written; a line is not an
/// object.
/// Test: tests/io/json_log_test.cpp
class JsonLog {
public:
    /// Opens the file and empties it; with `append`, lines are added at its end.
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
