// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/io/atomic_file.hpp>
#include <unitscale/io/json_log.hpp>
#include <unitscale/scaling/recipe.hpp>

#include <nlohmann/json.hpp>

#include <filesystem>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

// The file that keeps the results of many runs, so that a killed program can resume:
//   {"sweep":{"text":"2b5e...","width":128,...}}    the settings that all runs share
//   {"run":{"lr":0.5,"seed":1,...}}                 one line for each run that has ended
namespace unitscale::experiments {

/// A hash of a text: 16 hexadecimal digits.
[[nodiscard]] std::string fingerprint(std::string_view text);
[[nodiscard]] std::string fingerprint(const Recipe& recipe);

/// Reads a value that JsonLog has written. JsonLog writes NaN and infinities by name; both are read as NaN.
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

/// A file of results, one JSON object a line. While it is open, no other process can open it as a ResultsFile.
/// Opening drops a last line that a killed process left incomplete. Test: tests/experiments/results_file_test.cpp
class ResultsFile {
public:
    using Json = nlohmann::ordered_json;

    /// Opens or creates the file. All results in it share `settings`; `read` is called with each of its lines. `kind`
    /// names the contents, in the file's first line and in errors. Errors: the file has another kind or other settings,
    /// is in use or damaged (`read` throws Json::exception), or cannot be written.
    ResultsFile(std::filesystem::path path, std::string kind, const Json& settings,
                const std::function<void(const Json&)>& read);

    /// Adds a line and flushes it. Error: it cannot be written.
    void write(Json line) { log_->write(std::move(line)); }

    /// The beginning of error messages about the file.
    [[nodiscard]] std::string where() const { return kind_ + ": " + path_.string(); }

private:
    void check_settings(const Json& line, const Json& settings) const;

    std::filesystem::path path_;
    std::string kind_;
    io::FileDescriptor lock_{};
    std::unique_ptr<io::JsonLog> log_{};
};

}  // namespace unitscale::experiments
