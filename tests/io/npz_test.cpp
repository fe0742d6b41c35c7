// SPDX-License-Identifier: MIT
#include <unitscale/io/npz.hpp>
#include <unitscale/tensor/fill.hpp>

#include "support/catch.hpp"
#include "support/temporary_folder.hpp"

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

using namespace unitscale;
using namespace unitscale::io;
using unitscale::test::TemporaryFolder;

namespace {

template <class T>
bool same(const Tensor<T>& a, const Tensor<T>& b) {
    return a.shape() == b.shape() && std::equal(a.span().begin(), a.span().end(), b.span().begin());
}

/// The message of the error, with the folder's path cut out; "" without an error.
template <class F>
std::string message(const TemporaryFolder& folder, F f) {
    try {
        f();
    } catch (const Error& error) {
        std::string text = error.what();
        const std::string path = folder.path().string() + "/";
        if (const auto at = text.find(path); at != std::string::npos) text.erase(at, path.size());
        return text;
    }
    return "";
}

}  // namespace

TEST_CASE("arrays of several types come back by their names, stored and deflated") {
    const TemporaryFolder folder;
    const auto weight = normal<float>({20, 30}, {1, 2});
    const auto bias = normal<Half>({30}, {1, 3});
    const auto ids = integers<std::int64_t>({7}, {1, 4}, -5, 5);
    const Tensor<double> empty(Shape{0, 3}), scalar(Shape{}, {0.1});
    std::map<NpzCompression, std::uintmax_t> sizes;
    for (const auto compression : {NpzCompression::stored, NpzCompression::deflated}) {
        const auto path = folder.path() / "x.npz";
        NpzWriter writer(path, compression);
        writer.add("weight", weight);
        writer.add("block/bias", bias);
        writer.add("ids", ids);
        writer.add("empty", empty);
        writer.add("scalar", scalar);
        writer.close();
        sizes[compression] = std::filesystem::file_size(path);
        const NpzReader reader(path);
        CHECK(reader.names() == std::vector<std::string>{"weight", "block/bias", "ids", "empty", "scalar"});
        CHECK(same(reader.load<std::int64_t>("ids"), ids));
        CHECK(same(reader.load<float>("weight"), weight));
        CHECK(same(reader.load<Half>("block/bias"), bias));
        CHECK(same(reader.load<double>("empty"), empty));
        CHECK(same(reader.load<double>("scalar"), scalar));
        CHECK(same(reader.load<float>("weight"), weight));
    }
    CHECK(sizes[NpzCompression::stored] > 2400 + 60 + 56 + 8);
    CHECK(sizes[NpzCompression::deflated] < sizes[NpzCompression::stored]);
}

TEST_CASE("a file made by another program is read: zip64 fields, both methods, column-major, other members") {
    const NpzReader reader(std::filesystem::path(UNITSCALE_TEST_DATA) / "io" / "python_zipfile.npz");
    CHECK(reader.names() == std::vector<std::string>{"weight", "ids", "block/column_major"});
    CHECK(same(reader.load<float>("weight"), Tensor<float>({2, 3}, {0, 1, 2, 3, 4, 5})));
    CHECK(same(reader.load<std::int64_t>("ids"), Tensor<std::int64_t>({4}, {7, -1, 0, std::int64_t{1} << 40})));
    CHECK(same(reader.load<double>("block/column_major"), Tensor<double>({2, 2}, {1, 2, 3, 4})));
}

TEST_CASE("a stored member is the .npy file of its tensor, and equal tensors make equal files") {
    const TemporaryFolder folder;
    const std::map<std::string, Tensor<float>> tensors{{"a", normal<float>({5}, {1, 2})},
                                                       {"b", normal<float>({2, 2}, {1, 3})}};
    save_npz(folder.path() / "x.npz", tensors);
    save_npz(folder.path() / "y.npz", tensors);
    save_npy(folder.path() / "b.npy", tensors.at("b"));
    const std::string bytes = TemporaryFolder::read(folder.path() / "x.npz");
    CHECK(bytes.starts_with("PK\x03\x04"));
    CHECK(bytes.find(TemporaryFolder::read(folder.path() / "b.npy")) != std::string::npos);
    CHECK(bytes == TemporaryFolder::read(folder.path() / "y.npz"));
    const auto loaded = load_npz<float>(folder.path() / "x.npz");
    REQUIRE(loaded.size() == 2);
    CHECK((same(loaded.at("a"), tensors.at("a")) && same(loaded.at("b"), tensors.at("b"))));
}

TEST_CASE("a .npz file that is not closed, or cannot be written, leaves the old file") {
    const TemporaryFolder folder;
    const auto path = folder.write("x.npz", "before");
    Tensor<float> tensor({1}, {1.0f});
    {
        NpzWriter writer(path);
        writer.add("a", tensor);
    }
    CHECK(TemporaryFolder::read(path) == "before");
    NpzWriter lost(folder.path() / "no" / "x.npz");
    lost.add("a", tensor);
    CHECK(message(folder, [&] { lost.close(); }).starts_with("npz: no/x.npz cannot be written: "));
    CHECK(message(folder, [&] { NpzWriter(folder.path()); }) == "npz: " + folder.path().string() + " is a directory");
    std::size_t files = 0;
    for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(folder.path())) ++files;
    CHECK(files == 1);
}

TEST_CASE("names that are empty or repeated, scales and calls out of order are refused by name") {
    const TemporaryFolder folder;
    Tensor<float> tensor({1}, {1.0f});
    NpzWriter writer(folder.path() / "x.npz");
    CHECK(message(folder, [&] { writer.close(); }) == "npz: x.npz: no arrays, or closed before");
    CHECK(message(folder, [&] { writer.add("", tensor); }) == "npz: x.npz: an array needs a name");
    writer.add("a", tensor);
    CHECK(message(folder, [&] { writer.add("a", tensor); }) == "npz: x.npz: a.npy is there already");
    tensor.set_scale(0.5);
    CHECK(message(folder, [&] { writer.add("b", tensor); }) ==
          "npz: x.npz: b.npy: the tensor has scale 0.5; the format holds plain numbers only");
    writer.close();
    CHECK(message(folder, [&] { writer.add("c", tensor); }) == "npz: x.npz: c.npy comes after close()");
    CHECK(NpzReader(folder.path() / "x.npz").names() == std::vector<std::string>{"a"});
}

TEST_CASE(
    "a missing, damaged or foreign member, or one of another type, is an error of one line with path and member") {
    const TemporaryFolder folder;
    save_npz<float>(folder.path() / "x.npz", {{"a", Tensor<float>({2}, {1, 2})}, {"b", Tensor<float>({1}, {3})}});
    const auto path = folder.path() / "x.npz";
    const auto load = [&](const char* name) {
        return message(folder, [&] { static_cast<void>(NpzReader(path).load<float>(name)); });
    };
    CHECK(load("a").empty());
    CHECK(load("c") == "npz: x.npz: c.npy is not there; the file holds: a b");
    CHECK(message(folder, [&] { static_cast<void>(NpzReader(path).load<double>("a")); }) ==
          "npz: x.npz: a.npy holds elements of type '<f4'; expected '<f8'");
    CHECK(message(folder, [&] { NpzReader(folder.path() / "y.npz"); }) == "npz: y.npz does not exist or is not a file");
    const auto text = folder.write("text.npz", "not a zip file");
    CHECK(message(folder, [&] { NpzReader{text}; }) == "npz: text.npz cannot be opened: Not a zip archive");

    std::string bytes = TemporaryFolder::read(path);
    const std::string two("\x00\x00\x00\x40", 4);  // the element 2
    const auto at = bytes.find(std::string("\x00\x00\x80\x3F", 4) + two);
    REQUIRE(at != std::string::npos);
    bytes[at] = 1;
    folder.write("x.npz", bytes);
    CHECK(load("a") == "npz: x.npz: a.npy is damaged: CRC error");
    CHECK(load("b").empty());
}

TEST_CASE("a reader says an array's type and shape, and converts on request") {
    const TemporaryFolder folder;
    const auto path = folder.path() / "x.npz";
    {
        NpzWriter writer(path, NpzCompression::deflated);
        writer.add("images", Tensor<std::uint8_t>({2, 2}, {0, 1, 254, 255}));
        writer.add("labels", Tensor<std::int64_t>({2}, {7, 5000000000}));
        writer.close();
    }
    const NpzReader reader(path);
    CHECK(reader.type("images") == "|u1");
    CHECK(reader.shape("images") == Shape{2, 2});
    CHECK(reader.type("labels") == "<i8");
    CHECK(reader.read_as<float>("images")(1, 1) == 255.0f);
    CHECK(same(reader.read_as<std::int64_t>("labels"), reader.load<std::int64_t>("labels")));
    CHECK(message(folder, [&] { static_cast<void>(reader.read_as<std::int32_t>("labels")); }) ==
          "npz: x.npz: labels.npy: element 1 is 5e+09, which elements of type '<i4' do not hold");
    CHECK(message(folder, [&] { static_cast<void>(reader.type("none")); }) ==
          "npz: x.npz: none.npy is not there; the file holds: images labels");
}
