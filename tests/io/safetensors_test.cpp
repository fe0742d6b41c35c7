// SPDX-License-Identifier: MIT
#include <unitscale/io/safetensors.hpp>

#include <unitscale/base/random.hpp>
#include <unitscale/tensor/fill.hpp>

#include "support/catch.hpp"
#include "support/child_process.hpp"
#include "support/temporary_folder.hpp"

#include <sys/resource.h>
#include <sys/stat.h>

#include <array>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <random>
#include <string>
#include <thread>
#include <vector>

using namespace unitscale;
using namespace unitscale::io;
using test::ChildProcess;
using test::TemporaryFolder;
namespace fs = std::filesystem;

namespace {

/// A file in memory. Its own allocation, so that a sanitizer sees reads past its end.
std::vector<std::byte> file_of(const SafetensorsWriter& writer) {
    std::vector<std::byte> file;
    writer.write_to([&file](std::span<const std::byte> bytes) { file.insert(file.end(), bytes.begin(), bytes.end()); });
    return file;
}
std::vector<std::byte> file_of(std::string_view header, std::size_t data_bytes, unsigned char fill = 0) {
    std::vector<std::byte> file(8 + header.size() + data_bytes, std::byte{fill});
    for (std::size_t i = 0; i < 8; ++i) file[i] = static_cast<std::byte>(header.size() >> 8 * i & 0xFF);
    std::memcpy(file.data() + 8, header.data(), header.size());
    return file;
}

/// The message of the error; "" without an error.
template <class F>
std::string message(F f) {
    try {
        f();
    } catch (const Error& error) {
        return error.what();
    }
    return "";
}

template <class T>
bool same_bits(const Tensor<T>& a, const Tensor<T>& b) {
    const auto left = std::as_bytes(a.span()), right = std::as_bytes(b.span());
    return a.shape() == b.shape() && std::equal(left.begin(), left.end(), right.begin(), right.end());
}

template <class... T, class Use>
void for_types(const Use& use) {
    (use(T{}), ...);
}

/// Every code of a one-byte type, or random bits, as a tensor of the given type.
template <class T>
Tensor<T> any_bits(const Shape& shape) {
    Tensor<T> tensor(shape);
    const auto bytes = std::as_writable_bytes(tensor.span());
    for (std::size_t i = 0; i < bytes.size(); ++i)
        bytes[i] = static_cast<std::byte>(random_word({.seed = 3, .stream = sizeof(T)}, i) & 0xFF);
    if constexpr (CodedElement<T> && sizeof(T) == 1)
        for (std::byte& byte : bytes) byte &= static_cast<std::byte>(format_of<T>.code_count() - 1);
    if constexpr (std::is_same_v<T, bool>)
        for (std::byte& byte : bytes) byte &= std::byte{1};
    return tensor;
}

/// A folder's names.
std::vector<std::string> names_in(const fs::path& folder) {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(folder)) names.push_back(entry.path().filename().string());
    return names;
}

/// A small file with tensors of several types, metadata and a format of its own.
SafetensorsWriter small_file() {
    SafetensorsWriter writer;
    writer.add("w", Tensor<float>({2, 3}, {1, 2, 3, 4, 5, 6}));
    writer.add("h", Tensor<Half>({2}, {Half(0.5f), Half(2.0f)}));
    writer.add("f", any_bits<Minifloat<e2m3>>({3, 2}));
    writer.add("e", any_bits<Minifloat<e5m2>>({5}));
    writer.add("b", any_bits<bool>({3}));
    writer.add("i", Tensor<std::int64_t>({}, {-7}));
    writer.add("none", Tensor<double>(Shape{0, 4}));
    writer.set_metadata("step", "100");
    return writer;
}

/// Reads every tensor in every way. An Error is as good as a value, and is checked to be one line. Returns true if the
/// header of the file was good.
bool read_everything(std::span<const std::byte> file) {
    const auto attempt = [](auto read) {
        const std::string text = message(read);
        if (text.empty()) return true;
        const bool names_file = text.starts_with("safetensors: x: ") || text.starts_with("safetensors: x has ");
        if (!names_file || text.size() > 400 || text.find_first_of("\n\r\x1b") != text.npos)
            FAIL("the error: " << text);
        return false;
    };
    return attempt([&] {
        const SafetensorsReader reader(file, "x");
        for (const auto& tensor : reader.tensors()) {
            const std::string& name = tensor.first;
            const SafetensorsEntry& entry = tensor.second;
            const auto try_type = [&]<class T>(T) {
                const bool read = attempt([&] { static_cast<void>(reader.tensor<T>(name)); });
                if (!read && entry.dtype == safetensors_entry<T>().dtype && std::is_arithmetic_v<T> &&
                    entry.format.empty() && entry.dtype != "BOOL")
                    FAIL("a tensor that was announced cannot be read");
            };
            try_type(float{});
            try_type(double{});
            try_type(Half{});
            try_type(Minifloat<e2m3>{});
            try_type(Minifloat<e5m2>{});
            try_type(std::uint8_t{});
            try_type(std::int64_t{});
            try_type(bool{});
            attempt([&] { static_cast<void>(reader.read_as<float>(name)); });
            attempt([&] { static_cast<void>(reader.read_as<double>(name)); });
            std::vector<std::byte> bytes(entry.bytes());
            reader.read(name, bytes);
        }
    });
}

}  // namespace

TEST_CASE("tensors of every type come back bit for bit: any rank, empty, any name") {
    const TemporaryFolder folder;
    const auto path = folder.path() / "x.safetensors";
    const std::string name = "größe/重み \"\\\n";
    const auto check_type = [&]<class T>(T) {
        const auto matrix = any_bits<T>({7, 300}), scalar = any_bits<T>({}),
                   deep = any_bits<T>({1, 2, 1, 3, 1, 2, 1, 2});
        SafetensorsWriter writer;
        writer.add(name, matrix);
        writer.add("scalar", scalar);
        writer.add("deep", deep);
        writer.add("empty", Tensor<T>(Shape{0, 5}));
        writer.write(path);
        const SafetensorsReader reader(path);
        std::vector<std::byte> raw(matrix.size() * sizeof(T));
        reader.read(name, raw);
        const bool same = same_bits(reader.tensor<T>(name, Shape{7, 300}), matrix) &&
                          same_bits(reader.tensor<T>("scalar"), scalar) && same_bits(reader.tensor<T>("deep"), deep) &&
                          reader.tensor<T>("empty").shape() == Shape{0, 5} &&
                          std::memcmp(raw.data(), matrix.data(), raw.size()) == 0 && reader.tensors().size() == 4;
        INFO(reader.entry(name).dtype << ' ' << reader.entry(name).format);
        CHECK(same);
    };
    for_types<double, float, Half, BFloat16, Minifloat<e4m3>, Minifloat<e5m2>, std::int64_t, std::int32_t, std::int16_t,
              std::int8_t, std::uint64_t, std::uint32_t, std::uint16_t, std::uint8_t, bool, Minifloat<e4m3fnuz>,
              Minifloat<e5m2fnuz>, Minifloat<e2m3>, Minifloat<e8m0>,
              Minifloat<p3109(6, 3, Signedness::signed_format, Domain::finite)>,
              Minifloat<make_format({.exponent_bits = 3, .mantissa_bits = 3, .bias = 4})>>(check_type);
}

TEST_CASE("a file of the Python package is read, and equal tensors make equal bytes") {
    // Written by safetensors 0.8.0: serialize_file of NumPy arrays and metadata {"origin": ...}.
    const auto path = fs::path(UNITSCALE_TEST_DATA) / "io" / "python.safetensors";
    const std::string f16_name = "größe/重み \"\\\n\x7f";
    const auto floats = [](auto zero) {
        using T = decltype(zero);
        return Tensor<T>({3}, {T(1.5f), T(-2.0f), T(0.25f)});
    };
    const auto integers = [](auto zero) {
        using T = decltype(zero);
        return std::is_signed_v<T> ? Tensor<T>({3}, {T(1), T(-2), T(3)})
                                   : Tensor<T>({2}, {T(1), std::numeric_limits<T>::max()});
    };
    const Tensor<Half> matrix = cast<Half>(Tensor<float>({2, 3}, {1, 2, 3, 4, 5, 6}));
    const Tensor<std::int64_t> i64({2, 2}, {1, -2, 3, std::numeric_limits<std::int64_t>::min()});
    const SafetensorsReader reader(path);
    SafetensorsWriter writer;
    const auto expect = [&]<class T>(const std::string& name, const Tensor<T>& tensor) {
        INFO(name);
        CHECK(same_bits(reader.tensor<T>(name), tensor));
        writer.add(name, Tensor<T>(tensor));
    };
    expect("f64", floats(double{}));
    expect("f32", floats(float{}));
    expect("f16", floats(Half{}));
    expect("bf16", floats(BFloat16{}));
    expect("e4m3", floats(Minifloat<e4m3>{}));
    expect("e5m2", floats(Minifloat<e5m2>{}));
    expect("i64", i64);
    expect("i32", integers(std::int32_t{}));
    expect("i16", integers(std::int16_t{}));
    expect("i8", integers(std::int8_t{}));
    expect("u64", integers(std::uint64_t{}));
    expect("u32", integers(std::uint32_t{}));
    expect("u16", integers(std::uint16_t{}));
    expect("u8", integers(std::uint8_t{}));
    expect("bool", Tensor<bool>({3}, {true, false, true}));
    expect("scalar", Tensor<float>({}, {0.1f}));
    expect("empty", Tensor<std::int64_t>(Shape{0, 3}));
    expect(f16_name, matrix);
    CHECK(reader.tensors().size() == 18);
    CHECK(reader.metadata().size() == 1);
    CHECK(reader.metadata().at("origin") == "safetensors 0.8.0 ü");
    writer.set_metadata("origin", "safetensors 0.8.0 ü");
    const TemporaryFolder folder;
    writer.write(folder.path() / "x.safetensors");
    CHECK(TemporaryFolder::read(folder.path() / "x.safetensors") == TemporaryFolder::read(path));
}

TEST_CASE("the order in which tensors are added does not matter, and each is aligned to its elements") {
    const auto a = any_bits<std::uint8_t>({3}), b = any_bits<std::uint8_t>({5});
    const auto c = any_bits<double>({3});
    const auto d = any_bits<Half>({5});
    SafetensorsWriter one, two;
    one.set_metadata("k", "1"), one.set_metadata("l", "2"), one.add("a", a), one.add("b", b), one.add("c", c),
        one.add("d", d);
    two.add("d", d), two.add("c", c), two.add("b", b), two.add("a", a), two.set_metadata("l", "2"),
        two.set_metadata("k", "0");
    two.set_metadata("k", "1");
    const auto file = file_of(one);
    CHECK(file == file_of(two));
    const SafetensorsReader reader(file, "x");
    CHECK(reader.metadata().at("k") == "1");
    CHECK(file.size() % 8 == (3 + 5 + 3 * 8 + 5 * 2) % 8);
    CHECK(reader.entry("c").begin == 0);
    CHECK(reader.entry("d").begin == 24);
    CHECK(reader.entry("a").begin == 34);
    CHECK(file_of(SafetensorsWriter()) == file_of("{}      ", 0));
}

TEST_CASE("floating-point tensors are read as float and double, exactly") {
    for_types<Half, BFloat16, Minifloat<e4m3>, Minifloat<e5m2>, Minifloat<e5m2fnuz>, Minifloat<e2m3>, Minifloat<e8m0>,
              Minifloat<p3109(6, 3, Signedness::signed_format, Domain::finite)>>([]<class T>(T) {
        const auto tensor = any_bits<T>({41, 113});
        SafetensorsWriter writer;
        writer.add("x", tensor);
        const auto file = file_of(writer);
        const SafetensorsReader reader(file, "x");
        const auto floats = reader.read_as<float>("x", Shape{41, 113});
        const auto doubles = reader.read_as<double>("x");
        std::size_t equal = 0;
        for (std::size_t i = 0; i < tensor.size(); ++i) {
            const float value = static_cast<float>(tensor.data()[i]), read = floats.data()[i];
            const double wide = doubles.data()[i];
            const bool number =
                value == read && static_cast<double>(value) == wide && std::signbit(value) == std::signbit(read);
            equal += std::isnan(value) ? std::isnan(read) && std::isnan(wide) : number;
        }
        INFO(reader.entry("x").dtype << ' ' << reader.entry("x").format);
        CHECK(equal == 41 * 113);
    });
}

TEST_CASE("codes are read under the types that newer versions of the file format have for them") {
    std::string header = R"({"a":{"dtype":"F8_E4M3FNUZ","shape":[2],"data_offsets":[0,2]},)";
    header += R"("b":{"dtype":"F8_E8M0","shape":[1],"data_offsets":[2,3]}})";
    const auto file = file_of(header, 3, 0x80);
    const SafetensorsReader reader(file, "x");
    CHECK(reader.tensor<Minifloat<e4m3fnuz>>("a")(1).is_nan());
    CHECK(std::isnan(reader.read_as<float>("a")(0)));
    CHECK(reader.read_as<double>("b")(0) == 2.0);
}

TEST_CASE("float and double are read as they are, and float as double; double is not narrowed") {
    SafetensorsWriter writer;
    writer.add("f", Tensor<float>({2}, {0.1f, -0.0f}));
    writer.add("d", Tensor<double>({1}, {0.1}));
    writer.add("i", Tensor<std::int32_t>({1}, {1}));
    const auto file = file_of(writer);
    const SafetensorsReader reader(file, "x");
    CHECK(reader.read_as<float>("f")(0) == 0.1f);
    CHECK(reader.read_as<double>("f")(0) == static_cast<double>(0.1f));
    CHECK(std::signbit(reader.read_as<double>("f")(1)));
    CHECK(reader.read_as<double>("d")(0) == 0.1);
    CHECK(message([&] { (void)reader.read_as<float>("d"); }) ==
          "safetensors: x: tensor 'd' is of type F64, which float does not hold");
    CHECK(message([&] { (void)reader.read_as<double>("i"); }) ==
          "safetensors: x: tensor 'i' is of type I32; expected a floating-point type");
    CHECK(message([&] { (void)reader.read_as<double>("f", Shape{3}); }) ==
          "safetensors: x: tensor 'f' is [2]; expected [3]");
}

TEST_CASE("a missing tensor, or one of another kind, is an error of one line with file and tensor") {
    const auto file = file_of(small_file());
    const SafetensorsReader reader(file, "x");
    CHECK(reader.contains("w"));
    CHECK(!reader.contains("v"));
    CHECK(message([&] {
              (void)reader.tensor<float>("w", Shape{3, 2});
          }) == "safetensors: x: tensor 'w' is [2,3]; expected [3,2]");
    CHECK(message([&] { (void)reader.tensor<double>("w"); }) ==
          "safetensors: x: tensor 'w' is of type F32; expected F64");
    CHECK(message([&] { (void)reader.tensor<Minifloat<e3m2>>("f"); }) ==
          "safetensors: x: tensor 'f' is of type U8 of format 'e2m3'; expected U8 of format 'e3m2'");
    CHECK(message([&] { (void)reader.tensor<std::uint8_t>("f"); }) ==
          "safetensors: x: tensor 'f' is of type U8 of format 'e2m3'; expected U8");
    CHECK(message([&] { (void)reader.tensor<float>("v\n"); }) ==
          "safetensors: x: no tensor 'v\\u000a'; the file holds 'b' 'e' 'f' 'h' 'i' 'none' 'w'");
    std::vector<std::byte> bytes(23);
    CHECK(message([&] { reader.read("w", bytes); }) == "safetensors: x: tensor 'w' has 24 bytes; expected 23");
    SafetensorsWriter many;
    for (char name = 'a'; name <= 'z'; ++name) many.add(std::string(1, name), Tensor<bool>({}, {true}));
    const auto other = file_of(many);
    CHECK(message([&] { (void)SafetensorsReader(other, "x").entry("A"); }) ==
          "safetensors: x: no tensor 'A'; the file holds 'a' 'b' 'c' 'd' 'e' 'f' 'g' 'h' and 18 more");
    const auto none = file_of("{}", 0);
    CHECK(message([&] { (void)SafetensorsReader(none, "x").entry("A"); }) ==
          "safetensors: x: no tensor 'A'; the file holds none");
}

TEST_CASE("elements that are none, formats and types that are not known are errors of their tensor alone") {
    const auto read = [](const std::string& dtype, const std::string& format, auto type, unsigned char byte) {
        using T = decltype(type);
        std::string header = R"({"__metadata__":{"unitscale.format.a":")" + format + R"("},"a":{"dtype":")" + dtype;
        header += R"(","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"U8","shape":[1],"data_offsets":[2,3]}})";
        const auto file = file_of(header, 3, byte);
        const SafetensorsReader reader(file, "x");
        CHECK(reader.tensor<std::uint8_t>("b")(0) == byte);
        std::vector<std::byte> raw(2);
        reader.read("a", raw);
        CHECK(raw[1] == std::byte{byte});
        return message([&] {
            if constexpr (std::is_same_v<T, float>) static_cast<void>(reader.read_as<float>("a"));
            else static_cast<void>(reader.tensor<T>("a"));
        });
    };
    const std::string a = "safetensors: x: tensor 'a' ";
    CHECK(read("BOOL", "", bool{}, 1).empty());
    CHECK(read("BOOL", "", bool{}, 2) == a + "of type BOOL holds the byte 2; expected less than 2");
    CHECK(read("U8", "e2m3", Minifloat<e2m3>{}, 63).empty());
    CHECK(read("U8", "e2m3", Minifloat<e2m3>{}, 64) ==
          a + "of type U8 of format 'e2m3' holds the byte 64; expected less than 64");
    CHECK(read("U8", "e2m3", float{}, 64) ==
          a + "of type U8 of format 'e2m3' holds the byte 64; expected less than 64");
    CHECK(read("U8", "e9\\nm", float{}, 1) == a + "is of type U8 of format 'e9\\u000am', which is not known");
    CHECK(read("U8", "p3109_k99p3sf", float{}, 1) == a + "is of type U8 of format 'p3109_k99p3sf', which is not known");
    CHECK(read("U8", "fp16", float{}, 1) == a + "is of type U8 of format 'fp16', which is not known");
    CHECK(read("U8", "fp16", Half{}, 1) == a + "is of type U8 of format 'fp16'; expected F16");
    CHECK(read("F\\n4", "", float{}, 1) == a + "is of type 'F\\u000a4'; expected a floating-point type");
    CHECK(read("F4", "", std::uint8_t{}, 1) == a + "is of type 'F4'; expected U8");
}

TEST_CASE("tensors that a file has no place for are refused by name, and nothing is written") {
    SafetensorsWriter writer;
    Tensor<float> tensor({2}, {1, 2});
    writer.add("a", tensor);
    CHECK(message([&] { writer.add("a", tensor); }) == "safetensors: tensor 'a' is there already");
    CHECK(message([&] { writer.add("", tensor); }) == "safetensors: a tensor needs a name");
    CHECK(message([&] { writer.add("__metadata__", tensor); }) ==
          "safetensors: tensor '__metadata__': the name is taken by the metadata");
    CHECK(message([&] { writer.add("a\xff", tensor); }) == "safetensors: tensor 'a\\xff': the name is not UTF-8");
    CHECK(message([&] { writer.add("b", Shape{3}, std::as_const(tensor).span()); }) ==
          "safetensors: tensor 'b' of shape [3] has 3 elements, but 2 were given");
    CHECK(message([&] { writer.set_metadata("k\n", "\xff"); }) == "safetensors: metadata 'k\\u000a' are not UTF-8");
    CHECK(message([&] { writer.set_metadata("unitscale.format.a", "e4m3"); }) ==
          "safetensors: metadata 'unitscale.format.a': such keys name tensors' formats");
    tensor.set_scale(0.5);
    CHECK(message([&] { writer.add("b", tensor); }) ==
          "safetensors: tensor 'b' has scale 0.5; a file holds plain numbers only");
    CHECK(message([&] { writer.add("b", Tensor<float>(tensor)); }) ==
          "safetensors: tensor 'b' has scale 0.5; a file holds plain numbers only");
    const auto file = file_of(writer);
    CHECK(SafetensorsReader(file, "x").tensors().size() == 1);
    CHECK(SafetensorsReader(file, "x").metadata().empty());
}

TEST_CASE("paths that hold no such file are one line each") {
    const TemporaryFolder folder;
    const auto open = [](const fs::path& path) { return message([&] { SafetensorsReader{path}; }); };
    const auto named = [&](const char* name) { return "safetensors: " + (folder.path() / name).string(); };
    CHECK(open(folder.path() / "missing") == named("missing") + " does not exist or is not a file");
    CHECK(open(folder.path()) ==
          "safetensors: " + folder.path().string() + " has neither model.safetensors nor model.safetensors.index.json");
    CHECK(open(folder.write("short", "1234567")) == named("short") + " has 7 bytes: too few for a safetensors file");
    CHECK(open(folder.write("zero", std::string(8, '\0'))) == named("zero") + ": the header is no JSON object");
    CHECK(open(folder.write("text", "this is a text\n")) ==
          named("text") + ": a header of 2338328219631577204 bytes does not fit the file of 15 bytes");
    const auto large = folder.write("large", std::string("\x01\xe1\xf5\x05\0\0\0\0{", 9));  // 100,000,001
    fs::resize_file(large, 100'000'009);
    CHECK(open(large) == named("large") + ": a header of 100000001 bytes is above the limit of 100000000");
    CHECK(message([&] { small_file().write(folder.path()); }) ==
          "safetensors: " + folder.path().string() + " is a directory");
    CHECK(names_in(folder.path()).size() == 4);
}

TEST_CASE("a reader reads the file that it opened: a new one under its name does no harm, a shorter one is an error") {
    const TemporaryFolder folder;
    const auto path = folder.path() / "x.safetensors";
    small_file().write(path);
    const SafetensorsReader reader(path);
    SafetensorsWriter other;
    other.add("w", Tensor<float>({1}, {9}));
    other.write(path);
    CHECK(reader.tensor<float>("w")(1, 2) == 6);
    CHECK(SafetensorsReader(path).tensor<float>("w")(0) == 9);
    const SafetensorsReader cut(path);
    fs::resize_file(path, fs::file_size(path) - 1);
    CHECK(message([&] { (void)cut.tensor<float>("w"); }) ==
          "safetensors: " + path.string() + " has become shorter since it was opened");
}

TEST_CASE("every truncation of a file is one line that names it") {
    const TemporaryFolder folder;
    const auto path = folder.path() / "x.safetensors";
    small_file().write(path);
    const std::size_t whole = fs::file_size(path);
    std::size_t refused = 0;
    for (std::size_t length = whole; length-- > 0;) {
        fs::resize_file(path, length);
        const std::string text = message([&] { SafetensorsReader{path}; });
        refused += text.starts_with("safetensors: " + path.string()) && text.find('\n') == text.npos;
    }
    CHECK(refused == whole);
}

TEST_CASE("10,000 damaged files either load or are one line of error") {
    const auto good = file_of(small_file());
    const std::size_t header_bytes =
        std::to_integer<std::size_t>(good[0]) + 256 * std::to_integer<std::size_t>(good[1]);
    const std::string header(reinterpret_cast<const char*>(good.data()) + 8, header_bytes);
    const std::size_t data_bytes = good.size() - 8 - header_bytes;
    REQUIRE(read_everything(good));

    std::mt19937_64 engine(1);
    const auto below = [&engine](std::size_t count) { return static_cast<std::size_t>(engine() % count); };
    const auto pick = [&below](const auto& list) { return list[below(list.size())]; };
    const std::vector<std::string> numbers{"0",
                                           "1",
                                           "2",
                                           "3",
                                           "5",
                                           "8",
                                           "24",
                                           "48",
                                           "4294967296",
                                           "9223372036854775808",
                                           "18446744073709551615",
                                           "18446744073709551616",
                                           "-1",
                                           "2.0",
                                           "1e9",
                                           "null",
                                           "[1]"};
    const std::vector<std::string> types{"F64", "F32", "F16", "U8",          "BOOL", "F8_E5M2",
                                         "I64", "F4",  "",    "F8_E4M3FNUZ", "\\n"};
    const std::vector<std::string> formats{"e2m3", "e3m2",    "fp16",         "e8m0", "fp32",
                                           "e4m3", "\\u001b", "p3109_k8p3se", ""};
    /// Replaces the run of `characters` after a random occurrence of `before` by `by`.
    const auto replace_some = [&](std::string text, const std::string& before, const std::string& characters,
                                  const std::string& by) {
        std::vector<std::size_t> places;
        for (std::size_t at = text.find(before); at != text.npos; at = text.find(before, at + 1))
            places.push_back(at + before.size());
        if (places.empty()) return text;
        const std::size_t at = pick(places), end = std::min(text.find_first_not_of(characters, at), text.size());
        return text.replace(at, end - at, by);
    };
    const std::string digits = "0123456789", letters = digits + "ABCDEFGHIJKLMNOPQRSTUVWXYZ_abcdefghijklmnopqrstuvwxyz";
    std::array<std::size_t, 8> loaded{}, refused{};
    for (std::size_t i = 0; i < 10'000; ++i) {
        const std::size_t kind = i % 8;
        auto file = good;
        std::string text = header;
        if (kind == 0) {
            file.resize(below(file.size()));
            file.shrink_to_fit();
        } else if (kind == 1) {
            for (std::size_t flips = 1 + below(4); flips > 0; --flips)
                file[below(file.size())] ^= std::byte{1} << below(8);
        } else if (kind == 2) {
            const std::size_t change = below(3) == 0 ? engine() >> below(64) : header_bytes + 16 - below(33);
            for (std::size_t byte = 0; byte < 8; ++byte) file[byte] = static_cast<std::byte>(change >> 8 * byte & 0xFF);
        } else if (kind == 3) {
            text = replace_some(text, "[", digits, pick(numbers));
        } else if (kind == 4) {
            text = replace_some(text, ",", digits, pick(numbers));
        } else if (kind == 5) {
            if (below(2) == 0) text = replace_some(text, "dtype\":\"", letters, pick(types));
            else text = replace_some(text, "unitscale.format.f\":\"", letters, pick(formats));
        } else if (kind == 6) {  // the offsets of two tensors are swapped
            std::vector<std::size_t> places;
            for (std::size_t at = text.find("s\":["); at != text.npos; at = text.find("s\":[", at + 1))
                places.push_back(at + 4);
            const std::size_t a = pick(places), b = pick(places);
            const std::string of_a = text.substr(a, text.find(']', a) - a),
                              of_b = text.substr(b, text.find(']', b) - b);
            text.replace(std::max(a, b), (a > b ? of_a : of_b).size(), a > b ? of_b : of_a);
            text.replace(std::min(a, b), (a > b ? of_b : of_a).size(), a > b ? of_a : of_b);
        } else {  // a piece is lost, doubled or scrambled
            const std::size_t from = below(text.size()),
                              count = 1 + below(std::min<std::size_t>(40, text.size() - from));
            const std::string piece = text.substr(from, count);
            if (below(3) == 0) text.erase(from, count);
            else if (below(2) == 0) text.insert(below(text.size()), piece);
            else text[from] = pick(std::string("{}[]\",:\\ \n0-e\xff") + '\0');
        }
        if (kind >= 3) {
            file = file_of(text, data_bytes);
            std::copy_n(good.end() - static_cast<std::ptrdiff_t>(data_bytes), data_bytes,
                        file.end() - static_cast<std::ptrdiff_t>(data_bytes));
        }
        ++(read_everything(file) ? loaded : refused)[kind];
    }
    CHECK(loaded[0] == 0);
    CHECK(loaded[1] > 50);  // flips in elements
    for (std::size_t kind = 0; kind < refused.size(); ++kind) CHECK(refused[kind] > 200);
}

TEST_CASE("a file-size limit below the size of the new file is an error and leaves the old one") {
    const TemporaryFolder folder;
    const auto path = folder.path() / "x.safetensors";
    small_file().write(path);
    const std::string before = TemporaryFolder::read(path);
    ChildProcess child([&] {
        const rlimit limit{4096, 4096};
        ::setrlimit(RLIMIT_FSIZE, &limit);
        SafetensorsWriter writer;
        writer.add("w", Tensor<float>(Shape{2000}));
        writer.write(path);
        return std::string("written");
    });
    CHECK(child.text() == "safetensors: " + path.string() + " cannot be written: File too large");
    CHECK(TemporaryFolder::read(path) == before);
    CHECK(names_in(folder.path()).size() == 1);
}

TEST_CASE("50 kills at random moments of saving leave one of the two versions, whole; the next save clears up") {
    const TemporaryFolder folder;
    const auto path = folder.path() / "x.safetensors";
    constexpr std::size_t elements = 100'000;
    const auto save = [&path](int version) {
        SafetensorsWriter writer;
        const std::vector<float> values(elements, static_cast<float>(version));
        writer.add("w", Shape{elements}, std::span(values));
        writer.add("version", Tensor<std::int32_t>({}, {version}));
        writer.write(path);
    };
    // A save replaces the file, so that its inode number changes. Both files exist at once, so the numbers differ.
    const auto number = [&path] {
        struct stat status {};
        REQUIRE(::stat(path.c_str(), &status) == 0);
        return status.st_ino;
    };
    save(0);
    std::mt19937_64 engine(std::random_device{}());
    std::size_t good = 0, half_written = 0;
    std::array<std::size_t, 2> versions{};
    for (int kill = 0; kill < 50; ++kill) {
        auto last = number();
        ChildProcess child([&]() -> std::string {
            for (int version = 1;; version = 1 - version) save(version);
        });
        // On machines of any speed: wait for none, one or two saves, then for the next new file, then a moment.
        const auto patience = std::chrono::steady_clock::now() + std::chrono::seconds(60);
        const auto wait_a_moment = [&patience] {
            if (std::chrono::steady_clock::now() > patience) FAIL("no save within a minute");
            std::this_thread::sleep_for(std::chrono::microseconds(20));
        };
        for (int saves = 0; saves < kill % 3;) {
            wait_a_moment();
            if (const auto now = number(); now != last) last = now, ++saves;
        }
        while (names_in(folder.path()).size() < 2 && number() == last) wait_a_moment();
        std::this_thread::sleep_for(std::chrono::microseconds(engine() % 500));
        child.kill();
        CHECK(child.signal() == SIGKILL);
        const SafetensorsReader reader(path);
        const std::int32_t version = reader.tensor<std::int32_t>("version")();
        const auto values = reader.tensor<float>("w", Shape{elements});
        good += std::count(values.span().begin(), values.span().end(), static_cast<float>(version)) == elements;
        ++versions.at(static_cast<std::size_t>(version));
        half_written += names_in(folder.path()).size() > 1;
    }
    CHECK(good == 50);
    CHECK(half_written > 0);  // else no save was killed
    CHECK((versions[0] > 0 && versions[1] > 0));
    save(1);
    CHECK(names_in(folder.path()) == std::vector<std::string>{"x.safetensors"});
    CHECK(SafetensorsReader(path).tensor<std::int32_t>("version")() == 1);
}
