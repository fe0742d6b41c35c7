// SPDX-License-Identifier: MIT
#include <unitscale/io/npy.hpp>

#include "support/catch.hpp"
#include "support/temporary_folder.hpp"

// Included directly: xtensor's reader and writer are the independent reference here.
#if __has_include(<xtensor/io/xnpy.hpp>)
#include <xtensor/io/xnpy.hpp>
#else
#include <xtensor/xnpy.hpp>
#endif

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

using namespace unitscale;
using namespace unitscale::io;
using unitscale::test::TemporaryFolder;

namespace {

template <class T>
void require_round_trip(const Tensor<T>& tensor) {
    const TemporaryFolder folder;
    const auto path = folder.path() / "x.npy";
    save_npy(path, tensor);
    REQUIRE(std::filesystem::file_size(path) % 64 == (tensor.size() * sizeof(T)) % 64);
    const Tensor<T> loaded = load_npy<T>(path);
    REQUIRE(loaded.shape() == tensor.shape());
    for (std::size_t i = 0; i < tensor.size(); ++i) REQUIRE(loaded.data()[i] == tensor.data()[i]);
    REQUIRE(loaded.scale() == 1.0);
}

/// A .npy file of version 1.0 with this dictionary and these bytes of data.
std::string file_bytes(std::string header, std::size_t data_bytes) {
    header += '\n';
    std::string bytes("\x93NUMPY\x01\x00", 8);
    bytes += static_cast<char>(header.size() & 0xFF);
    bytes += static_cast<char>(header.size() >> 8);
    return bytes + header + std::string(data_bytes, '\0');
}

}  // namespace

TEST_CASE("tensors of every rank and type come back from their .npy files") {
    require_round_trip(Tensor<float>(Shape{2, 3}, {1.0f, -2.5f, 3e-40f, 4.0f, 5.0f, 1e38f}));
    require_round_trip(Tensor<double>(Shape{3}, {0.1, 0.2, 0.3}));
    require_round_trip(Tensor<double>(Shape{}, {0.1}));
    require_round_trip(Tensor<Half>(Shape{2}, {Half(0.5f), Half(65504.0f)}));
    require_round_trip(Tensor<std::int32_t>(Shape{1, 2, 1, 2}, {1, -2, 3, 4}));
    require_round_trip(Tensor<std::uint8_t>(Shape{2, 1}, {1, 255}));
    require_round_trip(Tensor<float>(Shape{0, 4}));
}

TEST_CASE("xtensor reads our .npy files and we read xtensor's") {
    const TemporaryFolder folder;
    const std::string path = (folder.path() / "x.npy").string();
    Tensor<float> tensor(Shape{2, 3}, {1.0f, 2.0f, 3.0f, 4.0f, 5.0f, 6.0f});
    save_npy(path, tensor);
    const xt::xarray<float> seen = xt::load_npy<float>(path);
    REQUIRE(seen.dimension() == 2);
    REQUIRE(seen(1, 0) == 4.0f);
    REQUIRE(seen(0, 2) == 3.0f);

    xt::xarray<std::int64_t> written = {{1, 2}, {3, 4}, {5, 6}};
    xt::dump_npy(path, written);
    const auto loaded = load_npy<std::int64_t>(path);
    REQUIRE(loaded.shape() == Shape{3, 2});
    REQUIRE(loaded(2, 0) == 5);
}

TEST_CASE("column-major files are read into row-major tensors") {
    const TemporaryFolder folder;
    const std::string path = (folder.path() / "x.npy").string();
    xt::xarray<float, xt::layout_type::column_major> written = {{1, 2, 3}, {4, 5, 6}};
    xt::dump_npy(path, written);
    REQUIRE(TemporaryFolder::read(path).find("'fortran_order': True") != std::string::npos);
    const auto loaded = load_npy<float>(path);
    REQUIRE(loaded.shape() == Shape{2, 3});
    for (std::size_t i = 0; i < 6; ++i) REQUIRE(loaded.data()[i] == static_cast<float>(i + 1));
    const std::string header = "{'descr': '<f8', 'fortran_order': True, 'shape': (0, 4), }";
    REQUIRE(load_npy<double>(folder.write("empty.npy", file_bytes(header, 0))).shape() == Shape{0, 4});
}

TEST_CASE("headers of versions 2 and 3 and of other spacing are read") {
    const TemporaryFolder folder;
    const std::string header = "{'shape':(2,),'fortran_order':False ,  'descr':  '<f4'}\n";
    std::string bytes("\x93NUMPY\x02\x00", 8);
    bytes += std::string({static_cast<char>(header.size()), 0, 0, 0}) + header + std::string(8, '\0');
    REQUIRE(load_npy<float>(folder.write("two.npy", bytes)).shape() == Shape{2});
    bytes[6] = 3;
    REQUIRE(load_npy<float>(folder.write("three.npy", bytes)).shape() == Shape{2});
}

TEST_CASE("a .npy header longer than 127 bytes is read") {
    const TemporaryFolder folder;
    const std::string header = "{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }" + std::string(150, ' ');
    REQUIRE(load_npy<float>(folder.write("long.npy", file_bytes(header, 8))).size() == 2);
}

TEST_CASE("a .npy file that is missing, of another kind or broken is one line that names the path") {
    const TemporaryFolder folder;
    const auto message = [&](const std::string& bytes) {
        const auto path = folder.write("x.npy", bytes);
        try {
            static_cast<void>(load_npy<float>(path));
        } catch (const Error& error) {
            const std::string text = error.what(), start = "npy: " + path.string() + " ";
            return text.starts_with(start) ? text.substr(start.size()) : text;
        }
        return std::string("no error");
    };
    const std::string good = "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 2), }";
    REQUIRE(message(file_bytes(good, 16)) == "no error");
    REQUIRE(message(file_bytes(good, 12)) == "has 12 bytes of data, but shape [2,2] needs 16");
    REQUIRE(message(file_bytes(good, 20)) == "has 20 bytes of data, but shape [2,2] needs 16");
    REQUIRE(message("") == "is not a .npy file of version 1 to 3");
    REQUIRE(message("PK\x03\x04 a zip file") == "is not a .npy file of version 1 to 3");
    REQUIRE(message(file_bytes(good, 0).substr(0, 9)) == "is truncated in its header");
    REQUIRE(message(file_bytes(good, 0).substr(0, 30)) == "is truncated in its header");
    REQUIRE(message(file_bytes("{'descr': '<f8', 'fortran_order': False, 'shape': (2,), }", 16)) ==
            "holds elements of type '<f8'; expected '<f4'");
    for (const char* header :
         {"{}", "{'descr': '<f4', 'fortran_order': False}", "{'descr': '<f4', 'fortran_order': False, 'shape': (2, ",
          "{'descr': '<f4', 'fortran_order': False, 'shape': (-2,)}",
          "{'descr': '<f4', 'fortran_order': 0, 'shape': (2,)}", "{'descr': '<f4, 'fortran_order': False, 'shape': 2}",
          "{'descr':", "{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (2,)}"})
        REQUIRE(message(file_bytes(header, 8)) == "has a malformed header");
    REQUIRE(message(file_bytes("{'descr': '<f4', 'fortran_order': False, 'shape': (4294967296, 4294967296, 4), }",
                               16)) == "has the impossible shape [4294967296,4294967296,4]");
    REQUIRE(message(file_bytes("{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999,), }", 16)) ==
            "has 16 bytes of data, but shape [99999999999] needs 399999999996");
    REQUIRE_THROWS_WITH(load_npy<float>(folder.path() / "none.npy"),
                        "npy: " + folder.path().string() + "/none.npy does not exist or is not a file");
    REQUIRE_THROWS_WITH(load_npy<float>(folder.path()),
                        "npy: " + folder.path().string() + " does not exist or is not a file");
}

TEST_CASE("a tensor with a scale, and a path that cannot be written, are refused by save_npy") {
    const TemporaryFolder folder;
    Tensor<float> tensor(Shape{1}, {1.0f});
    REQUIRE_THROWS_WITH(save_npy(folder.path() / "no" / "x.npy", tensor),
                        "npy: " + folder.path().string() + "/no/x.npy cannot be written: No such file or directory");
    std::filesystem::create_directories(folder.path() / "x.npy" / "full");
    REQUIRE_THROWS_WITH(save_npy(folder.path() / "x.npy", tensor),
                        "npy: " + folder.path().string() + "/x.npy is a directory");
    std::filesystem::remove_all(folder.path() / "x.npy");
    tensor.set_scale(0.5);
    REQUIRE_THROWS_WITH(
        save_npy(folder.path() / "x.npy", tensor),
        "npy: " + folder.path().string() + "/x.npy: the tensor has scale 0.5; the format holds plain numbers only");
    REQUIRE_FALSE(std::filesystem::exists(folder.path() / "x.npy"));
}

TEST_CASE("a .npy file says its type and shape, and its numbers become another type if they fit") {
    const TemporaryFolder folder;
    const auto path = folder.path() / "x.npy";
    const auto load = [&]<class To>(To, const auto& tensor) {
        save_npy(path, tensor);
        return load_npy_as<To>(path);
    };
    save_npy(path, Tensor<std::int64_t>({2, 3}, {0, 1, 2, 3, 4, 5}));
    CHECK(npy_header(path).type == "<i8");
    CHECK(npy_header(path).shape == Shape{2, 3});
    CHECK(load_npy_as<float>(path)(1, 2) == 5.0f);
    CHECK(load_npy_as<std::int32_t>(path)(1, 2) == 5);
    CHECK(load_npy_as<std::int64_t>(path)(1, 2) == 5);
    CHECK(load(float{}, Tensor<double>({2}, {0.1, 1e-60}))(0) == 0.1f);
    CHECK(load(double{}, Tensor<Half>({1}, {Half(0.25f)}))(0) == 0.25);
    CHECK(load(std::int32_t{}, Tensor<double>({2}, {-3.0, 7.0}))(0) == -3);
    CHECK(load(float{}, Tensor<bool>({2}, {true, false}))(0) == 1.0f);
    CHECK(load(false, Tensor<std::uint8_t>({2}, {1, 0}))(0));
    CHECK(std::isinf(load(Half(0.0f), Tensor<float>({1}, {std::numeric_limits<float>::infinity()}))(0)));

    const auto error = [&](std::string text) { return "npy: " + path.string() + std::move(text); };
    REQUIRE_THROWS_WITH(load(std::int32_t{}, Tensor<std::int64_t>({2}, {1, 5000000000})),
                        error(": element 1 is 5e+09, which elements of type '<i4' do not hold"));
    REQUIRE_THROWS_WITH(load(std::uint8_t{}, Tensor<std::int32_t>({1}, {-1})),
                        error(": element 0 is -1, which elements of type '|u1' do not hold"));
    REQUIRE_THROWS_WITH(load(std::int32_t{}, Tensor<float>({1}, {0.5f})),
                        error(": element 0 is 0.5, which elements of type '<i4' do not hold"));
    REQUIRE_THROWS_WITH(load(std::int64_t{}, Tensor<double>({1}, {0x1p63})),
                        error(": element 0 is 9.22337e+18, which elements of type '<i8' do not hold"));
    REQUIRE_THROWS_WITH(load(Half(0.0f), Tensor<float>({1}, {1e6f})),
                        error(": element 0 is 1e+06, which elements of type '<f2' do not hold"));
    REQUIRE_THROWS_WITH(load(false, Tensor<std::int32_t>({1}, {2})),
                        error(": element 0 is 2, which elements of type '|b1' do not hold"));
    CHECK(load(std::int64_t{}, Tensor<double>({1}, {-0x1p63}))(0) == std::numeric_limits<std::int64_t>::min());
    const std::string complex = "{'descr': '<c8', 'fortran_order': False, 'shape': (1,), }";
    const auto other = folder.write("c.npy", file_bytes(complex, 8));
    REQUIRE_THROWS_WITH(load_npy_as<float>(other), "npy: " + other.string() +
                                                       " holds elements of type '<c8', which "
                                                       "cannot be converted to '<f4'");
}
