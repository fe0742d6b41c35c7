// SPDX-License-Identifier: MIT
#include <unitscale/io/safetensors_index.hpp>

#include "support/catch.hpp"
#include "support/temporary_folder.hpp"

#include <filesystem>
#include <string>

using namespace unitscale;

TEST_CASE("safetensors index: the file of each tensor") {
    const io::SafetensorsIndex index =
        io::parse_safetensors_index("index", R"({"metadata": {"total_size": 5, "deep": {"weight_map": {"x": "y"}}},
                     "weight_map": {"a": "1.safetensors", "weight_map": "2.safetensors"}})");
    CHECK(index == io::SafetensorsIndex{{"a", "1.safetensors"}, {"weight_map", "2.safetensors"}});
}

TEST_CASE("safetensors index: damaged indices are one clear line") {
    const auto refused = [](const std::string& text, const std::string& message) {
        CHECK_THROWS_WITH(io::parse_safetensors_index("index", text), "index: " + message);
    };
    for (const char* text : {"", "[]", "{", R"({"weight_map": {"a": "b")", "\xff"}) refused(text, "is no JSON object");
    for (const char* text : {"{}", R"({"weight_map": {}})", R"({"weight_map": ["a"]})", R"({"weight_map": 3})"})
        refused(text, "has no 'weight_map' from tensors to files");
    refused(R"({"weight_map": {"a": "1", "b": "1", "a": "2"}})", "names tensor 'a' twice");
    refused(R"({"weight_map": {"a": "1"}, "weight_map": {"b": "1"}})", "has two 'weight_map's");
    const std::string expected = "; expected the name of a file beside the index";
    for (const char* file : {"../x", "/etc/x", "..", ".", "", "a/b"})
        refused(std::string(R"({"weight_map": {"a": ")") + file + "\"}}",
                std::string("the file of tensor 'a' is '") + file + "'" + expected);
    refused(R"({"weight_map": {"a": "x\\y"}})", "the file of tensor 'a' is 'x\\y'" + expected);
    refused(R"({"weight_map": {"a": 3}})", "the file of tensor 'a' is no text" + expected);
    refused(R"({"weight_map": {"a": {"b": [[[[1]]]]}}})", "the file of tensor 'a' is no text" + expected);
    CHECK_THROWS_AS(io::parse_safetensors_index("index", std::string(200'000, '[')), Error);
}

TEST_CASE("safetensors index: a folder stands for the file of all tensors, or for the index") {
    const test::TemporaryFolder folder;
    CHECK(io::find_safetensors("none/at/all") == "none/at/all");
    CHECK_THROWS_WITH(
        io::find_safetensors(folder.path()),
        "safetensors: " + folder.path().string() + " has neither model.safetensors nor model.safetensors.index.json");
    const auto index = folder.write("model.safetensors.index.json", "{}");
    CHECK(io::find_safetensors(folder.path()) == index);
    CHECK(io::is_safetensors_index(index));
    const auto file = folder.write("model.safetensors", "");
    CHECK(io::find_safetensors(folder.path()) == file);
    CHECK_FALSE(io::is_safetensors_index(file));
}
