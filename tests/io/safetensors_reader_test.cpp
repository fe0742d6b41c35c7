// SPDX-License-Identifier: MIT
#include <unitscale/io/safetensors_reader.hpp>

#include <unitscale/io/safetensors.hpp>

#include "support/catch.hpp"
#include "support/temporary_folder.hpp"

#include <array>
#include <cstddef>
#include <cstring>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

// Reading of single files: tests/io/safetensors_test.cpp.
using namespace unitscale;
using namespace unitscale::io;
using test::TemporaryFolder;
namespace fs = std::filesystem;

namespace {

template <class F>
std::string message(F&& f) {
    try {
        f();
    } catch (const Error& error) {
        return error.what();
    }
    return {};
}

SafetensorsWriter small_file() {
    SafetensorsWriter writer;
    writer.add("w", Tensor<float>({2, 3}, {1, 2, 3, 4, 5, 6}));
    writer.add("h", Tensor<Half>({2}, {Half(0.5f), Half(2.0f)}));
    writer.add("none", Tensor<double>(Shape{0, 4}));
    return writer;
}

}  // namespace

TEST_CASE("shards of an index are one file to the reader; a folder stands for the model in it") {
    const TemporaryFolder folder;
    const auto first = folder.path() / "model-00001-of-00002.safetensors",
               second = folder.path() / "model-00002-of-00002.safetensors",
               index = folder.path() / "model.safetensors.index.json";
    SafetensorsWriter one, two;
    one.add("a", Tensor<float>({2}, {1, 2}));
    one.add("c", Tensor<Half>({1}, {Half(0.5f)}));
    one.set_metadata("format", "pt");
    one.set_checksum();
    two.add("b", Tensor<float>({3}, {3, 4, 5}));
    two.set_metadata("format", "np");
    two.set_metadata("more", "2");
    two.set_checksum();
    one.write(first);
    two.write(second);
    const std::string whole = R"({"metadata": {"total_size": 22}, "weight_map": {
        "a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors",
        "c": "model-00001-of-00002.safetensors"}})";
    folder.write("model.safetensors.index.json", whole);
    for (const auto& path : {folder.path(), index}) {
        const SafetensorsReader reader(path);
        CHECK(reader.tensors().size() == 3);
        CHECK(reader.tensor<float>("b", Shape{3})(2) == 5);
        CHECK(reader.read_as<float>("c")(0) == 0.5f);
        CHECK(reader.entry("a").shard == 0);
        CHECK(reader.entry("b").shard == 1);
        CHECK(reader.metadata().at("format") == "pt");
        CHECK(reader.metadata().at("more") == "2");
        reader.check_checksum();
        CHECK(message([&] { (void)reader.tensor<float>("b", Shape{2}); }) ==
              "safetensors: " + second.string() + ": tensor 'b' is [3]; expected [2]");
        CHECK(message([&] { (void)reader.entry("d"); }) ==
              "safetensors: " + index.string() + ": no tensor 'd'; the file holds 'a' 'b' 'c'");
    }

    const auto open = [&] { return message([&] { SafetensorsReader(folder.path()).check_checksum(); }); };
    const auto with = [&](const std::string& old, const std::string& text) {
        std::string changed = whole;
        changed.replace(changed.find(old), old.size(), text);
        folder.write("model.safetensors.index.json", changed);
        return open();
    };
    const std::string start = "safetensors: " + index.string();
    CHECK(with(R"("b": "model-00002-of-00002)", R"("b": "model-00003-of-00003)") ==
          "safetensors: " + (folder.path() / "model-00003-of-00003.safetensors").string() +
              " does not exist or is not a file");
    CHECK(with(R"("c": "model-00001-of-00002)", R"("c": "model-00002-of-00002)") ==
          "safetensors: " + first.string() +
              ": tensor 'c' belongs into 'model-00002-of-00002.safetensors', as the model's index says");
    CHECK(with(R"("a":)", R"("d": "model-00001-of-00002.safetensors", "a":)") ==
          start + ": tensor 'd' is not in 'model-00001-of-00002.safetensors'");
    CHECK(with(R"("c": "model-00001)", R"("x": "model-00001)") ==
          "safetensors: " + first.string() + ": tensor 'c' is not in the model's index");

    folder.write("model.safetensors.index.json", whole);
    // A tensor in both shards.
    two.add("a", Tensor<float>({2}, {1, 2}));
    two.write(second);
    CHECK(open() == "safetensors: " + second.string() +
                        ": tensor 'a' belongs into 'model-00001-of-00002.safetensors', as the model's index says");
    fs::resize_file(second, fs::file_size(second) - 5);
    CHECK(open().starts_with("safetensors: " + second.string() + ": tensor "));
    // A file of all tensors comes first.
    small_file().write(folder.path() / "model.safetensors");
    CHECK(SafetensorsReader(folder.path()).contains("w"));
}

TEST_CASE("a view shows a tensor's bytes without a copy") {
    const TemporaryFolder folder;
    const auto path = folder.path() / "x.safetensors";
    small_file().write(path);
    const SafetensorsReader reader(path);
    const auto bytes = reader.view("w");
    REQUIRE(bytes.size() == 24);
    std::array<float, 6> values{};
    std::memcpy(values.data(), bytes.data(), bytes.size());
    CHECK(values == std::array<float, 6>{1, 2, 3, 4, 5, 6});
    CHECK(reader.view("none").empty());
    CHECK(reader.view("w").data() == bytes.data());
    fs::resize_file(path, 100);
    CHECK(message([&] { (void)reader.view("w"); }) ==
          "safetensors: " + path.string() + " has become shorter since it was opened");

    std::vector<std::byte> file;
    small_file().write_to([&](std::span<const std::byte> part) { file.insert(file.end(), part.begin(), part.end()); });
    const SafetensorsReader in_memory(file, "x");
    CHECK(in_memory.view("w").data() >= file.data());
    CHECK(in_memory.view("w").data() < file.data() + file.size());
}

TEST_CASE("safetensors: a tensor is read in parts") {
    const test::TemporaryFolder folder;
    const auto path = folder.path() / "parts.safetensors";
    io::SafetensorsWriter writer;
    writer.add("x", Tensor<std::uint8_t>({5}, {1, 2, 3, 4, 5}));
    writer.write(path);
    const io::SafetensorsReader reader(path);
    std::array<std::byte, 2> part{};
    reader.read_part("x", 3, part);
    CHECK(std::to_integer<int>(part[0]) == 4);
    CHECK(std::to_integer<int>(part[1]) == 5);
    CHECK_THROWS_WITH(reader.read_part("x", 4, part), Catch::Contains("tensor 'x' has 5 bytes; expected 2 from 4 on"));
}
