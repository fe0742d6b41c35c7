// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/base/error.hpp>
#include <unitscale/io/safetensors_header.hpp>
#include <unitscale/io/text.hpp>

#include <nlohmann/json.hpp>

#include <filesystem>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <system_error>

// The index of a model in several safetensors files, its shards. The files: io/safetensors.hpp.
namespace unitscale::io {

/// The names of a model's files in its folder, as the Python package transformers writes them.
inline constexpr std::string_view safetensors_model_name = "model.safetensors";
inline constexpr std::string_view safetensors_index_name = "model.safetensors.index.json";

/// The shard of each tensor.
using SafetensorsIndex = std::map<std::string, std::string, std::less<>>;

/// Parses an index:  {"metadata": {...}, "weight_map": {"lm_head.weight": "model-00001-of-00002.safetensors", ...}}
/// Errors, with `where` in front: text that is no JSON object; no `weight_map`, two of them, or an empty one; a tensor
/// that has two shards; a shard that is no name of a file beside the index.
/// Test: tests/io/safetensors_index_test.cpp
[[nodiscard]] inline SafetensorsIndex parse_safetensors_index(std::string_view where, std::string_view text) {
    constexpr const char* map_key = "weight_map";
    std::string outer, repeated;
    std::set<std::string> seen;
    bool two_maps = false;
    // nlohmann-json keeps the last of equal keys: they must be found here. Deeper values are left out.
    const auto watch = [&](int depth, nlohmann::json::parse_event_t event, const nlohmann::json& value) {
        if (event == nlohmann::json::parse_event_t::key && depth == 1) {
            two_maps = two_maps || (value == map_key && !seen.empty());
            outer = value.get<std::string>();
        } else if (event == nlohmann::json::parse_event_t::key && depth == 2 && outer == map_key) {
            const auto name = value.get<std::string>();
            if (!seen.insert(name).second && repeated.empty()) repeated = name;
        }
        return depth < 4;
    };
    const nlohmann::json json = nlohmann::json::parse(text.begin(), text.end(), watch, false);
    check(json.is_object(), where, ": is no JSON object");
    const auto found = json.find(map_key);
    check(found != json.end() && found->is_object() && !found->empty(), where,
          ": has no 'weight_map' from tensors to files");
    check(!two_maps, where, ": has two 'weight_map's");
    check(repeated.empty(), where, ": names tensor ", quoted_text(repeated), " twice");
    SafetensorsIndex index;
    for (const auto& [tensor, shard] : found->items()) {
        const std::string file = shard.is_string() ? shard.get<std::string>() : "";
        const bool plain = !file.empty() && file != "." && file != ".." &&
                           file.find_first_of(std::string_view("/\\\0", 3)) == std::string::npos;
        check(plain, where, ": the file of tensor ", quoted_text(tensor), " is ",
              shard.is_string() ? quoted_text(file) : "no text", "; expected the name of a file beside the index");
        index.emplace(tensor, file);
    }
    return index;
}

/// The file or the index of a path: a folder stands for the model in it.
/// Error: a folder with neither of the two names.
[[nodiscard]] inline std::filesystem::path find_safetensors(const std::filesystem::path& path) {
    std::error_code ignored;
    if (!std::filesystem::is_directory(path, ignored)) return path;
    for (const std::string_view name : {safetensors_model_name, safetensors_index_name})
        if (std::filesystem::exists(path / name, ignored)) return path / name;
    fail("safetensors: ", path.string(), " has neither ", safetensors_model_name, " nor ", safetensors_index_name);
}

/// Whether a path is the path of an index, by its name.
[[nodiscard]] inline bool is_safetensors_index(const std::filesystem::path& path) {
    return path.filename().string().ends_with(".index.json");
}

}  // namespace unitscale::io
