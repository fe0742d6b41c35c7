// SPDX-License-Identifier: MIT
#include <unitscale/io/mapped_file.hpp>

#include "support/catch.hpp"
#include "support/temporary_folder.hpp"

#include <array>
#include <cstddef>
#include <filesystem>
#include <span>
#include <string>
#include <utility>

using namespace unitscale;

namespace {

std::string text(std::span<const std::byte> bytes) {
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}
std::string copy(const io::MappedFile& file, std::uint64_t offset, std::size_t count) {
    std::string out(count, ' ');
    file.read(offset, std::as_writable_bytes(std::span<char>(out)));
    return out;
}

}  // namespace

TEST_CASE("mapped file: parts are copied or seen in place, from a file and from memory") {
    const test::TemporaryFolder folder;
    const std::filesystem::path path = folder.write("a", "0123456789");
    const io::MappedFile file("test: a", path);
    CHECK(file.size() == 10);
    CHECK(copy(file, 3, 4) == "3456");
    CHECK(text(file.view(3, 4)) == "3456");
    CHECK(file.view(3, 4).data() == file.view(0, 10).data() + 3);
    CHECK(file.view(10, 0).empty());

    // The file that was opened stays, under a new name or none.
    const auto seen = file.view(0, 10);
    std::filesystem::remove(path);
    folder.write("a", "other");
    CHECK(text(seen) == "0123456789");
    CHECK(copy(file, 0, 2) == "01");

    const std::string bytes = "memory";
    io::MappedFile memory("test: b", std::as_bytes(std::span(bytes)));
    CHECK(copy(memory, 1, 3) == "emo");
    CHECK(memory.view(2, 4).data() == reinterpret_cast<const std::byte*>(bytes.data()) + 2);
    const io::MappedFile moved = std::move(memory);
    CHECK(text(moved.view(0, 6)) == "memory");
}

TEST_CASE("mapped file: a missing file, a folder, an empty file and a shortened one") {
    const test::TemporaryFolder folder;
    const auto missing = folder.path() / "none";
    CHECK_THROWS_WITH(io::MappedFile("test: none", missing), "test: none does not exist or is not a file");
    CHECK_THROWS_WITH(io::MappedFile("test: x", folder.path()), "test: x does not exist or is not a file");
    const io::MappedFile empty("test: empty", folder.write("empty", ""));
    CHECK(empty.size() == 0);
    CHECK(empty.view(0, 0).empty());
    const auto path = folder.write("a", "0123456789");
    const io::MappedFile file("test: a", path);
    std::filesystem::resize_file(path, 6);
    CHECK(text(file.view(2, 4)) == "2345");
    CHECK_THROWS_WITH(file.view(2, 5), "test: a has become shorter since it was opened");
    CHECK_THROWS_WITH(copy(file, 2, 5), "test: a has become shorter since it was opened");
}
