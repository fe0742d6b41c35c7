// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/base/error.hpp>
#include <unitscale/formats/code.hpp>
#include <unitscale/formats/format.hpp>
#include <unitscale/io/mapped_file.hpp>
#include <unitscale/io/safetensors_checksum.hpp>
#include <unitscale/io/safetensors_header.hpp>
#include <unitscale/io/safetensors_index.hpp>
#include <unitscale/tensor/cast.hpp>
#include <unitscale/tensor/tensor.hpp>

#include <algorithm>
#include <array>
#include <bit>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

// Reads safetensors files; io/safetensors.hpp describes them and writes them. This header needs nlohmann-json.
namespace unitscale::io {

static_assert(std::endian::native == std::endian::little,
              "safetensors files are little-endian: elements are not swapped here");

/// The limit of the header length, in bytes, for reading and writing; the Python package has this limit too.
inline constexpr std::uint64_t safetensors_header_limit = 100'000'000;

/// Reads a safetensors file, or the files of a model that is split into shards. The path names a file, an index
/// (`*.index.json`) or a folder with a model.safetensors or a model.safetensors.index.json.
/// The constructor reads and checks the headers: a file with a damaged header is refused as a whole.
/// Elements are read on demand from the opened files, even if other files have taken their names since. Every function
/// is const and may be called from several threads.
///   const SafetensorsReader reader("model.safetensors");
///   const Tensor<Half> weight = reader.tensor<Half>("weight", Shape{3, 2});
/// Errors, for any content of the files, in one line that names the file and the fault: the errors of
/// `parse_safetensors_header` and `parse_safetensors_index`; a missing, truncated or unreadable file; a tensor that is
/// not in the shard that the index says, or is in a shard and not in the index.
/// `safetensors: model.safetensors: tensor 'a/b' is [2,3]; expected [3,2]`.
/// Test: tests/io/safetensors_reader_test.cpp
class SafetensorsReader {
public:
    explicit SafetensorsReader(const std::filesystem::path& path) {
        const std::filesystem::path found = find_safetensors(path);
        where_ = concatenate("safetensors: ", found.string());
        if (is_safetensors_index(found)) open_shards(found);
        else add_shard(MappedFile(where_, found));
    }
    /// Reads a file from memory. The bytes are borrowed while the reader lives; `name` stands for the path.
    explicit SafetensorsReader(std::span<const std::byte> bytes, std::string_view name)
        : where_(concatenate("safetensors: ", name)) {
        add_shard(MappedFile(where_, bytes));
    }

    /// All tensors by name: type, shape and place.
    [[nodiscard]] const std::map<std::string, SafetensorsEntry, std::less<>>& tensors() const noexcept {
        return header_.tensors;
    }
    /// Of several shards: all pieces of metadata, the first shard's where a key comes several times.
    [[nodiscard]] const std::map<std::string, std::string, std::less<>>& metadata() const noexcept {
        return header_.metadata;
    }
    [[nodiscard]] bool contains(std::string_view name) const {
        return header_.tensors.find(name) != header_.tensors.end();
    }
    /// Error: no such tensor; the message lists some that exist.
    [[nodiscard]] const SafetensorsEntry& entry(std::string_view name) const {
        const auto found = header_.tensors.find(name);
        if (found == header_.tensors.end()) fail(where_, ": no tensor ", quoted_text(name), "; ", list_of_names());
        return found->second;
    }

    /// Reads the files that have a checksum. Error: it is not that of the file's elements and metadata.
    void check_checksum() const {
        for (const Shard& shard : shards_) {
            const auto found = shard.metadata.find(safetensors_checksum_key);
            if (found == shard.metadata.end()) continue;
            const auto each = [&shard](const auto& sink) {
                std::vector<std::byte> piece(std::size_t{1} << 20);
                for (std::uint64_t at = shard.data_start; at < shard.file.size(); at += piece.size()) {
                    piece.resize(std::min<std::uint64_t>(piece.size(), shard.file.size() - at));
                    shard.file.read(at, piece);
                    sink(piece);
                }
            };
            const std::string own = safetensors_checksum(each, shard.metadata);
            check(own == found->second, shard.file.where(), ": is damaged: it has the checksum ", own,
                  ", not that of its metadata");
        }
    }

    /// The bytes of a tensor of any type, known or not. Error: the tensor has more or fewer bytes.
    void read(std::string_view name, std::span<std::byte> out) const {
        const SafetensorsEntry& found = entry(name);
        check(out.size() == found.bytes(), where(name), " has ", found.bytes(), " bytes; expected ", out.size());
        read_at(found, 0, out);
    }
    /// Bytes `begin` and following of a tensor, for tensors that are read in parts.
    void read_part(std::string_view name, std::size_t begin, std::span<std::byte> out) const {
        const SafetensorsEntry& found = entry(name);
        check(begin <= found.bytes() && out.size() <= found.bytes() - begin, where(name), " has ", found.bytes(),
              " bytes; expected ", out.size(), " from ", begin, " on");
        read_at(found, begin, out);
    }
    /// The bytes of a tensor in the memory map of its file: no copy. They are valid while the reader lives, and aligned
    /// as the file has them. MappedFile::view says more.
    [[nodiscard]] std::span<const std::byte> view(std::string_view name) const {
        const SafetensorsEntry& found = entry(name);
        const Shard& shard = shards_[found.shard];
        return shard.file.view(shard.data_start + found.begin, found.bytes());
    }

    /// A tensor with the stored elements, of type T.
    /// Errors: elements of another type; a shape other than the expected one, if given; a byte that is no code of T.
    template <SafetensorsElement T>
    [[nodiscard]] Tensor<T> tensor(std::string_view name, const std::optional<Shape>& expected = {}) const {
        const SafetensorsEntry& found = entry(name);
        const SafetensorsEntry wanted = safetensors_entry<T>();
        if (!holds(found, wanted, sizeof(T)))
            fail(where(name), " is of type ", type_name(found), "; expected ", type_name(wanted));
        check_shape(name, found, expected);
        Tensor<T> result(found.shape);
        const std::span<std::byte> bytes = std::as_writable_bytes(result.span());
        read_at(found, 0, bytes);
        if constexpr (std::same_as<T, bool>) check_codes(name, found, bytes, 2);
        if constexpr (CodedElement<T> && sizeof(T) == 1) check_codes(name, found, bytes, format_of<T>.code_count());
        return result;
    }

    /// The errors of `read_as` that no element causes.
    template <std::floating_point Float>
    void check_readable(std::string_view name, const std::optional<Shape>& expected = {}) const {
        const SafetensorsEntry& found = entry(name);
        if (found.dtype == "F64" && std::same_as<Float, float>)
            fail(where(name), " is of type F64, which float does not hold");
        if (found.format.empty() && found.dtype != "F64" && found.dtype != "F32")
            fail(where(name), " is of type ", type_name(found), "; expected a floating-point type");
        check_shape(name, found, expected);
    }

    /// A tensor of any floating-point type in float or double, exactly.
    /// Errors: elements of another or an unknown type; F64 requested as float; a shape other than the expected one; a
    /// byte that is no code of the format.
    template <std::floating_point Float>
    [[nodiscard]] Tensor<Float> read_as(std::string_view name, const std::optional<Shape>& expected = {}) const {
        const SafetensorsEntry& found = entry(name);
        if (found.dtype == safetensors_entry<Float>().dtype) return tensor<Float>(name, expected);
        if constexpr (std::same_as<Float, double>) {
            return cast<double>(read_as<float>(name, expected));
        } else {
            check_readable<Float>(name, expected);
            Tensor<float> result(found.shape);
            if (find_safetensors_type(found.dtype)->bytes == 1) decode_into<std::uint8_t>(name, found, result.span());
            else decode_into<std::uint16_t>(name, found, result.span());
            return result;
        }
    }

private:
    struct Shard {
        MappedFile file;
        std::uint64_t data_start;  ///< where the header ends
        std::map<std::string, std::string, std::less<>> metadata;
    };

    /// Opens the files of an index, in the order of their names.
    void open_shards(const std::filesystem::path& index_path) {
        const MappedFile index_file(where_, index_path);
        check(index_file.size() <= safetensors_header_limit, where_, " has ", index_file.size(),
              " bytes; expected at most ", safetensors_header_limit);
        std::string text(static_cast<std::size_t>(index_file.size()), '\0');
        index_file.read(0, std::as_writable_bytes(std::span<char>(text)));
        const SafetensorsIndex index = parse_safetensors_index(where_, text);
        std::map<std::string, std::size_t> numbers;
        for (const auto& [tensor, shard] : index) numbers.emplace(shard, 0);
        for (auto& [shard, number] : numbers) {
            number = shards_.size();
            const std::filesystem::path path = index_path.parent_path() / shard;
            add_shard(MappedFile(concatenate("safetensors: ", path.string()), path), &index, shard);
        }
        for (const auto& [tensor, shard] : index)
            check(contains(tensor), where_, ": tensor ", quoted_text(tensor), " is not in ", quoted_text(shard));
    }

    /// Reads a file's header, and adds its tensors. With an index: the index must have put them in the file `name`.
    void add_shard(MappedFile file, const SafetensorsIndex* index = nullptr, std::string_view name = {}) {
        const std::string where = file.where();
        const std::uint64_t file_bytes = file.size();
        check(file_bytes >= 8, where, " has ", file_bytes, " bytes: too few for a safetensors file");
        std::array<std::byte, 8> start{};
        file.read(0, start);
        std::uint64_t length = 0;
        for (std::size_t i = 8; i-- > 0;) length = length << 8 | std::to_integer<std::uint64_t>(start[i]);
        check(length <= file_bytes - 8, where, ": a header of ", length, " bytes does not fit the file of ", file_bytes,
              " bytes");
        check(length <= safetensors_header_limit, where, ": a header of ", length, " bytes is above the limit of ",
              safetensors_header_limit);
        std::string text(static_cast<std::size_t>(length), '\0');
        file.read(8, std::as_writable_bytes(std::span<char>(text)));
        SafetensorsHeader header = parse_safetensors_header(where, text, file_bytes - 8 - length);
        for (auto& [tensor, entry] : header.tensors) {
            entry.shard = shards_.size();
            if (index != nullptr) {
                const auto found = index->find(tensor);
                if (found == index->end())
                    fail(where, ": tensor ", quoted_text(tensor), " is not in the model's index");
                if (found->second != name)
                    fail(where, ": tensor ", quoted_text(tensor), " belongs into ", quoted_text(found->second),
                         ", as the model's index says");
            }
            header_.tensors.emplace(tensor, std::move(entry));
        }
        for (const auto& [key, value] : header.metadata) header_.metadata.emplace(key, value);
        shards_.push_back({std::move(file), 8 + length, std::move(header.metadata)});
    }

    /// Copies a tensor's bytes from `offset` on.
    void read_at(const SafetensorsEntry& found, std::uint64_t offset, std::span<std::byte> out) const {
        const Shard& shard = shards_[found.shard];
        shard.file.read(shard.data_start + found.begin + offset, out);
    }

    /// The values of codes, block by block.
    template <CodeWord Code>
    void decode_into(std::string_view name, const SafetensorsEntry& found, std::span<float> values) const {
        const std::optional<FloatFormat> format = format_named(found.format);
        if (!format || format->code_bits() > 8 * static_cast<int>(sizeof(Code)))
            fail(where(name), " is of type ", type_name(found), ", which is not known");
        std::array<Code, 4096> block;
        for (std::size_t begin = 0; begin < values.size(); begin += block.size()) {
            const std::span<Code> codes = std::span(block).first(std::min(block.size(), values.size() - begin));
            read_at(found, begin * sizeof(Code), std::as_writable_bytes(codes));
            check_codes(name, found, std::as_bytes(codes), format->code_count());
            decode(*format, std::span<const Code>(codes), values.subspan(begin, codes.size()));
        }
    }
    [[nodiscard]] static std::optional<FloatFormat> format_named(std::string_view name) {
        try {
            return find_format(name);
        } catch (const Error&) {  // its message holds the raw name, perhaps on several lines
            return std::nullopt;
        }
    }

    /// True if the stored elements have the layout of the wanted type. Codes of one format agree under any dtype; but a
    /// file can name any format for bytes.
    [[nodiscard]] static bool holds(const SafetensorsEntry& found, const SafetensorsEntry& wanted,
                                    std::size_t element_bytes) {
        const SafetensorsType* const type = find_safetensors_type(found.dtype);
        return type != nullptr && type->bytes == element_bytes && found.format == wanted.format &&
               (found.dtype == wanted.dtype || !found.format.empty());
    }

    /// Error: a byte is not below `count`.
    void check_codes(std::string_view name, const SafetensorsEntry& found, std::span<const std::byte> bytes,
                     std::uint64_t count) const {
        if (count > 0xFF) return;
        const auto wrong = std::find_if(bytes.begin(), bytes.end(),
                                        [count](std::byte b) { return std::to_integer<unsigned>(b) >= count; });
        if (wrong != bytes.end())
            fail(where(name), " of type ", type_name(found), " holds the byte ", std::to_integer<unsigned>(*wrong),
                 "; expected less than ", count);
    }
    void check_shape(std::string_view name, const SafetensorsEntry& found, const std::optional<Shape>& expected) const {
        if (expected && found.shape != *expected)
            fail(where(name), " is ", cut_shape(found.shape), "; expected ", to_string(*expected));
    }

    /// The file and the tensor.
    [[nodiscard]] std::string where(std::string_view name) const {
        return concatenate(shards_[entry(name).shard].file.where(), ": tensor ", quoted_text(name));
    }
    [[nodiscard]] static std::string type_name(const SafetensorsEntry& entry) {
        if (find_safetensors_type(entry.dtype) == nullptr) return quoted_text(entry.dtype);
        if (entry.dtype != "U8" || entry.format.empty()) return entry.dtype;
        return concatenate("U8 of format ", quoted_text(entry.format));
    }
    [[nodiscard]] std::string list_of_names() const {
        if (header_.tensors.empty()) return "the file holds none";
        std::string list = "the file holds";
        std::size_t listed = 0;
        for (const auto& [name, entry] : header_.tensors) {
            if (++listed > 8) return concatenate(list, " and ", header_.tensors.size() - 8, " more");
            list.append(1, ' ').append(quoted_text(name));
        }
        return list;
    }

    std::string where_{};
    std::vector<Shard> shards_{};
    SafetensorsHeader header_{};  ///< the tensors and metadata of all shards
};

}  // namespace unitscale::io
