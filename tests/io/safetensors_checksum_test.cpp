// SPDX-License-Identifier: MIT
#include <unitscale/io/safetensors.hpp>
#include <unitscale/io/safetensors_checksum.hpp>

#include "support/catch.hpp"
#include "support/temporary_folder.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <map>
#include <span>
#include <string>
#include <string_view>

using namespace unitscale;

namespace {

std::string file_text(const std::filesystem::path& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}
io::SafetensorsReader reader_of(const std::string& text) {
    return io::SafetensorsReader(std::as_bytes(std::span<const char>(text)), "file");
}

}  // namespace

TEST_CASE("safetensors checksum: CRC-32 of the elements, then of the metadata") {
    const std::map<std::string, std::string, std::less<>> metadata{
        {"a", "1"}, {"checksum", "of before"}, {"unitscale.format.x", "e4m3"}, {"z", "text"}};
    const std::string data = "elements";
    const auto each = [&data](const auto& sink) {
        sink(std::as_bytes(std::span<const char>(data).first(3)));
        sink(std::as_bytes(std::span<const char>(data).subspan(3)));
    };
    using namespace std::string_literals;
    const std::string all = "elementsa\0001\0z\0text\0"s;
    const std::uint32_t crc = crc32(std::as_bytes(std::span<const char>(all)));
    CHECK(std::stoul(io::safetensors_checksum(each, metadata), nullptr, 16) == crc);
    CHECK(io::safetensors_checksum(each, metadata).size() == 8);
}

TEST_CASE("safetensors checksum: a flipped bit of elements or metadata is found") {
    const Tensor<float> x(Shape{2, 3}, {1, 2, 3, 4, 5, 6});
    const Tensor<Minifloat<e4m3>> codes(Shape{5});
    io::SafetensorsWriter writer;
    writer.add("x", x);
    writer.add("codes", codes);
    writer.set_metadata("step", "100");
    writer.set_checksum();
    const test::TemporaryFolder folder;
    const auto path = folder.path() / "file.safetensors";
    writer.write(path);
    const std::string whole = file_text(path);
    CHECK_NOTHROW(io::SafetensorsReader(path).check_checksum());
    CHECK_NOTHROW(reader_of(whole).check_checksum());

    const std::size_t elements = whole.size() - 6 * sizeof(float) - 5, number = whole.find("100");
    for (std::size_t at = elements; at < whole.size(); ++at)
        for (int bit = 0; bit < 8; ++bit) {
            std::string damaged = whole;
            damaged[at] = static_cast<char>(damaged[at] ^ (1 << bit));
            CHECK_THROWS_WITH(reader_of(damaged).check_checksum(),
                              Catch::StartsWith("safetensors: file: is damaged: it has the checksum "));
        }
    std::string damaged = whole;
    damaged[number] = '9';
    CHECK_THROWS_WITH(reader_of(damaged).check_checksum(), Catch::Contains("is damaged"));

    io::SafetensorsWriter plain;  // without a checksum there is nothing to check
    plain.add("x", x);
    plain.write(path);
    CHECK_NOTHROW(io::SafetensorsReader(path).check_checksum());
}
