// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/base/error.hpp>
#include <unitscale/io/atomic_file.hpp>
#include <unitscale/tensor/cast.hpp>
#include <unitscale/tensor/tensor.hpp>
#include <unitscale/tensor/view.hpp>

#include <algorithm>
#include <bit>
#include <charconv>
#include <cmath>
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
#include <utility>

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
    std::string type{};  ///< `<f4`
    bool fortran_order = false;
    Shape shape{};
    std::uint64_t data_bytes = 0;  ///< that follow the header
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

/// The header of `total` bytes of the format. read(to, count) delivers the bytes in order and returns false on failure.
/// Errors, in the name of `where`: no .npy data; a header that is truncated or malformed.
template <class Read>
[[nodiscard]] NpyHeader read_npy_header(std::string_view where, std::uint64_t total, Read& read) {
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
    header.data_bytes = total - data_start;
    return header;
}

/// The elements after the header. Column-major (Fortran) order becomes row-major.
/// Errors, in the name of `where`: elements of another type; fewer or more bytes than the shape says. Elements are
/// allocated only after these checks.
template <NpyElement T, class Read>
[[nodiscard]] Tensor<T> read_npy_elements(std::string_view where, const NpyHeader& header, Read& read) {
    check(header.type == npy_type<T>(), where, " holds elements of type '", header.type, "'; expected '", npy_type<T>(),
          "'");
    std::uint64_t data_bytes = sizeof(T);
    for (const std::size_t extent : header.shape) {
        const bool fits = extent == 0 || data_bytes <= std::numeric_limits<std::uint64_t>::max() / extent;
        check(fits, where, " has the impossible shape ", shape_text(header.shape));
        data_bytes *= extent;
    }
    check(header.data_bytes == data_bytes, where, " has ", header.data_bytes, " bytes of data, but shape ",
          shape_text(header.shape), " needs ", data_bytes);
    Shape shape = header.shape;
    if (header.fortran_order) std::reverse(shape.begin(), shape.end());
    Tensor<T> tensor(shape);
    check(read(reinterpret_cast<char*>(tensor.data()), static_cast<std::size_t>(data_bytes)), where, " cannot be read");
    return header.fortran_order ? copy_of(view(tensor).transpose()) : tensor;
}

/// The tensor in `total` bytes of the format, with elements of type T.
/// Errors: see `read_npy_header` and `read_npy_elements`.
template <NpyElement T, class Read>
[[nodiscard]] Tensor<T> read_npy(std::string_view where, std::uint64_t total, Read read) {
    const NpyHeader header = read_npy_header(where, total, read);
    return read_npy_elements<T>(where, header, read);
}

/// Whether a number of another type can be converted to T. An integer T must hold the number exactly. A float T may
/// round the number, but a finite number must stay finite. To bool only 0 and 1 fit.
template <NpyElement T, NpyElement From>
[[nodiscard]] bool fits_npy_element(From x) noexcept {
    if constexpr (std::is_same_v<T, bool>) return x == static_cast<From>(0) || x == static_cast<From>(1);
    else if constexpr (std::is_same_v<From, bool>) return true;
    else if constexpr (std::integral<T> && std::integral<From>)
        return x >= From(0)
                   ? static_cast<std::uintmax_t>(x) <= static_cast<std::uintmax_t>(std::numeric_limits<T>::max())
                   : std::is_signed_v<T> &&
                         static_cast<std::intmax_t>(x) >= static_cast<std::intmax_t>(std::numeric_limits<T>::min());
    else if constexpr (std::integral<T>) {
        const double wide = widest(x), end = std::ldexp(1.0, std::numeric_limits<T>::digits);
        return wide == std::trunc(wide) && wide < end && wide >= (std::is_signed_v<T> ? -end : 0.0);
    } else {
        return std::isfinite(widest(element_cast<T>(x))) || !std::isfinite(widest(x));
    }
}

/// The tensor in `total` bytes of the format, whatever the type of its elements, converted to T.
/// Errors, in the name of `where`: see `read_npy`; elements that are no numbers of this machine; an element that does
/// not fit T (`fits_npy_element`).
template <NpyElement T, class Read>
[[nodiscard]] Tensor<T> read_npy_as(std::string_view where, std::uint64_t total, Read read) {
    const NpyHeader header = read_npy_header(where, total, read);
    Tensor<T> result;
    const auto take = [&]<NpyElement From>(From) {
        if (header.type != npy_type<From>()) return false;
        Tensor<From> tensor = read_npy_elements<From>(where, header, read);
        if constexpr (std::is_same_v<T, From>) {
            result = std::move(tensor);
        } else {
            for (std::size_t i = 0; i < tensor.size(); ++i)
                check(fits_npy_element<T>(tensor.data()[i]), where, ": element ", i, " is ", widest(tensor.data()[i]),
                      ", which elements of type '", npy_type<T>(), "' do not hold");
            result = cast<T>(tensor);
        }
        return true;
    };
    const bool known = take(T{}) || take(float{}) || take(double{}) || take(Half(0.0f)) || take(std::int64_t{}) ||
                       take(std::int32_t{}) || take(std::int16_t{}) || take(std::int8_t{}) || take(std::uint64_t{}) ||
                       take(std::uint32_t{}) || take(std::uint16_t{}) || take(std::uint8_t{}) || take(false);
    check(known, where, " holds elements of type '", header.type, "', which cannot be converted to '", npy_type<T>(),
          "'");
    return result;
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

/// Calls use(where, total, read) for a .npy file. Errors, naming the path: the file is missing; it cannot be opened.
template <class Use>
[[nodiscard]] auto with_npy_file(const std::filesystem::path& path, Use use) {
    const std::string where = concatenate("npy: ", path.string());
    std::error_code error;
    check(std::filesystem::is_regular_file(path, error), where, " does not exist or is not a file");
    const std::uintmax_t total = std::filesystem::file_size(path, error);
    std::ifstream file(path, std::ios::binary);
    check(!error && file.is_open(), where, " cannot be read");
    return use(where, total, [&file](char* to, std::size_t count) {
        file.read(to, static_cast<std::streamsize>(count));
        return !file.fail();
    });
}

/// The tensor in a .npy file of elements of type T.
/// Errors, naming the path: the file is missing; the errors of `read_npy`.
template <NpyElement T>
[[nodiscard]] Tensor<T> load_npy(const std::filesystem::path& path) {
    return with_npy_file(path, [](const std::string& where, std::uintmax_t total, auto read) {
        return read_npy<T>(where, total, read);
    });
}

/// The tensor in a .npy file of numbers of any type, converted to T.
/// Errors, naming the path: the file is missing; the errors of `read_npy_as`.
template <NpyElement T>
[[nodiscard]] Tensor<T> load_npy_as(const std::filesystem::path& path) {
    return with_npy_file(path, [](const std::string& where, std::uintmax_t total, auto read) {
        return read_npy_as<T>(where, total, read);
    });
}

/// Type and shape of the array in a .npy file. Errors, naming the path: the file is missing; no .npy data.
[[nodiscard]] inline NpyHeader npy_header(const std::filesystem::path& path) {
    return with_npy_file(path, [](const std::string& where, std::uintmax_t total, auto read) {
        return read_npy_header(where, total, read);
    });
}

}  // namespace unitscale::io
