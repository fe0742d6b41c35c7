// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/base/error.hpp>
#include <unitscale/io/atomic_file.hpp>
#include <unitscale/tensor/tensor.hpp>
#include <unitscale/tensor/view.hpp>

#include <algorithm>
#include <bit>
#include <charconv>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <ios>
#include <limits>
#include <string>
#include <string_view>
#include <system_error>
#include <type_traits>

// NumPy's .npy files. xtensor's own reader (xnpy.hpp, which also works with Tensor::array()) accepts truncated files.
// It also adds most of a second to the compile time of every unit that includes it. Writing needs POSIX files
// (AtomicFile).
namespace unitscale::io {

/// Element types of .npy files. BFloat16 and Minifloat are not among them: cast to float first.
template <class T>
concept NpyElement = std::same_as<T, float> || std::same_as<T, double> || std::same_as<T, Half> || std::integral<T>;

/// The name of the type in .npy headers: `<f4`, `|u1`.
template <NpyElement T>
[[nodiscard]] std::string npy_type() {
    const char order = sizeof(T) == 1 ? '|' : std::endian::native == std::endian::little ? '<' : '>';
    const char kind = !std::is_integral_v<T> ? 'f' : std::is_same_v<T, bool> ? 'b' : std::is_signed_v<T> ? 'i' : 'u';
    return {order, kind, static_cast<char>('0' + sizeof(T))};
}

/// The bytes before the elements in version 1.0 of the format; their number is a multiple of 64.
/// Error, in the name of `where`: the tensor has a scale other than 1, for which the format has no place.
/// Reference: numpy.lib.format.
template <NpyElement T>
[[nodiscard]] std::string npy_preamble(std::string_view where, const Tensor<T>& tensor) {
    check(tensor.scale() == 1.0, where, ": the tensor has scale ", tensor.scale(),
          "; the format holds plain numbers only");
    std::string header = concatenate("{'descr': '", npy_type<T>(), "', 'fortran_order': False, 'shape': (");
    for (const std::size_t extent : tensor.shape()) header += std::to_string(extent) + ", ";
    if (tensor.rank() > 1) header.resize(header.size() - 2);
    else if (tensor.rank() == 1) header.pop_back();
    header += "), }";
    const std::size_t total = (10 + header.size() + 1 + 63) / 64 * 64;  // magic, version, length, header, newline
    header.append(total - 10 - header.size() - 1, ' ');
    header += '\n';
    std::string start("\x93NUMPY\x01\x00", 8);
    start += static_cast<char>(header.size() & 0xFF);
    start += static_cast<char>(header.size() >> 8);
    return start + header;
}

/// The elements as they lie in memory and in the file.
template <NpyElement T>
[[nodiscard]] std::string_view npy_bytes(const Tensor<T>& tensor) noexcept {
    return {reinterpret_cast<const char*>(tensor.data()), tensor.size() * sizeof(T)};
}

/// The dictionary of a .npy header.
struct NpyHeader {
    std::string_view type{};
    bool fortran_order = false;
    Shape shape{};
};

/// The text after `'key':` and blanks; empty if the key is missing.
[[nodiscard]] inline std::string_view npy_field(std::string_view header, std::string_view key) {
    const std::string quoted = concatenate('\'', key, "':");
    std::size_t at = header.find(quoted);
    if (at == std::string_view::npos) return {};
    at = header.find_first_not_of(' ', at + quoted.size());
    return at == std::string_view::npos ? std::string_view() : header.substr(at);
}

/// Reads the dictionary. False: the dictionary does not have the form that the format demands.
[[nodiscard]] inline bool parse_npy_header(std::string_view header, NpyHeader& result) {
    std::string_view type = npy_field(header, "descr"), order = npy_field(header, "fortran_order"),
                     shape = npy_field(header, "shape");
    if (type.empty() || type[0] != '\'' || shape.empty() || shape[0] != '(') return false;
    type.remove_prefix(1);
    const std::size_t quote = type.find('\'');
    if (quote == std::string_view::npos || !(order.starts_with("True") || order.starts_with("False"))) return false;
    result.type = type.substr(0, quote);
    result.fortran_order = order.starts_with("True");
    const char* at = shape.data() + 1;
    const char* const end = shape.data() + shape.size();
    while (true) {
        while (at != end && (*at == ' ' || *at == ',')) ++at;
        if (at == end) return false;
        if (*at == ')') return true;
        std::size_t extent = 0;
        const auto [next, problem] = std::from_chars(at, end, extent);
        if (problem != std::errc()) return false;
        result.shape.push_back(extent);
        at = next;
    }
}

/// The tensor in `total` bytes of the format. read(to, count) delivers the bytes in order and returns false on failure.
/// Column-major (Fortran) order becomes row-major.
/// Errors, in the name of `where`: no .npy data; elements of another type; fewer or more bytes than the shape says.
/// Elements are allocated only after these checks.
template <NpyElement T, class Read>
[[nodiscard]] Tensor<T> read_npy(std::string_view where, std::uint64_t total, Read read) {
    std::string start(8, '\0');
    const int version = total >= 8 && read(start.data(), 8) && start.starts_with("\x93NUMPY") ? start[6] : 0;
    check(version >= 1 && version <= 3, where, " is not a .npy file of version 1 to 3");
    const std::size_t length_bytes = version == 1 ? 2 : 4;
    std::string length(length_bytes, '\0');
    check(total >= 8 + length_bytes && read(length.data(), length_bytes), where, " is truncated in its header");
    std::uint64_t header_bytes = 0;
    for (std::size_t i = length_bytes; i-- > 0;)
        header_bytes = header_bytes << 8 | static_cast<unsigned char>(length[i]);
    const std::uint64_t data_start = 8 + length_bytes + header_bytes;
    check(data_start <= total, where, " is truncated in its header");
    std::string text(static_cast<std::size_t>(header_bytes), '\0');
    NpyHeader header;
    check(read(text.data(), text.size()) && parse_npy_header(text, header), where, " has a malformed header");
    check(header.type == npy_type<T>(), where, " holds elements of type '", header.type, "'; expected '", npy_type<T>(),
          "'");

    std::uint64_t data_bytes = sizeof(T);
    for (const std::size_t extent : header.shape) {
        const bool fits = extent == 0 || data_bytes <= std::numeric_limits<std::uint64_t>::max() / extent;
        check(fits, where, " has the impossible shape ", shape_text(header.shape));
        data_bytes *= extent;
    }
    check(total - data_start == data_bytes, where, " has ", total - data_start, " bytes of data, but shape ",
          shape_text(header.shape), " needs ", data_bytes);
    if (header.fortran_order) std::reverse(header.shape.begin(), header.shape.end());
    Tensor<T> tensor(header.shape);
    check(read(reinterpret_cast<char*>(tensor.data()), static_cast<std::size_t>(data_bytes)), where, " cannot be read");
    return header.fortran_order ? copy_of(view(tensor).transpose()) : tensor;
}

/// Writes the elements, row-major, as version 1.0 of the format. An old file stays until the new one is whole.
/// Errors, naming the path: the file cannot be written; the tensor has a scale other than 1.
/// Reference: numpy.lib.format. Test: tests/io/npy_test.cpp
template <NpyElement T>
void save_npy(const std::filesystem::path& path, const Tensor<T>& tensor) {
    std::string bytes = npy_preamble(concatenate("npy: ", path.string()), tensor);
    bytes += npy_bytes(tensor);
    write_atomically("npy", path, bytes);
}

/// The tensor in a .npy file of elements of type T.
/// Errors, naming the path: the file is missing; the errors of `read_npy`.
template <NpyElement T>
[[nodiscard]] Tensor<T> load_npy(const std::filesystem::path& path) {
    const std::string where = concatenate("npy: ", path.string());
    std::error_code error;
    check(std::filesystem::is_regular_file(path, error), where, " does not exist or is not a file");
    const std::uintmax_t total = std::filesystem::file_size(path, error);
    std::ifstream file(path, std::ios::binary);
    check(!error && file.is_open(), where, " cannot be read");
    return read_npy<T>(where, total, [&file](char* to, std::size_t count) {
        file.read(to, static_cast<std::streamsize>(count));
        return !file.fail();
    });
}

}  // namespace unitscale::io
