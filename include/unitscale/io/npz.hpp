// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/base/error.hpp>
#include <unitscale/io/npy.hpp>
#include <unitscale/tensor/tensor.hpp>

#include <zip.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

// NumPy's .npz files: several named arrays, each a .npy file, in one zip file. Only this header needs libzip (link with
// -lzip): include it on its own.
namespace unitscale::io {

/// Closes an archive without writing it.
struct DiscardZip {
    void operator()(zip_t* archive) const noexcept { zip_discard(archive); }
};
using Zip = std::unique_ptr<zip_t, DiscardZip>;

/// Opens a zip file. Error, in the name of `where`, with libzip's reason.
[[nodiscard]] inline Zip open_zip(const std::string& where, const std::filesystem::path& path, int flags) {
    int code = 0;
    Zip archive(zip_open(path.c_str(), flags, &code));
    if (!archive) {
        zip_error_t error;
        zip_error_init_with_code(&error, code);
        const std::string reason = zip_error_strerror(&error);
        zip_error_fini(&error);
        fail(where, " cannot be opened: ", reason);
    }
    return archive;
}

enum class NpzCompression { stored, deflated };

/// Writes a .npz file: add() every array, of any type, then close(). Without close(), and if close() throws, the path
/// is unchanged: libzip writes to a temporary file and renames it. Equal arrays give equal bytes.
/// Test: tests/io/npz_test.cpp
class NpzWriter {
public:
    explicit NpzWriter(std::filesystem::path path, NpzCompression compression = NpzCompression::stored)
        : where_(concatenate("npz: ", path.string())),
          method_(compression == NpzCompression::stored ? ZIP_CM_STORE : ZIP_CM_DEFLATE) {
        std::error_code ignored;
        check(!std::filesystem::is_directory(path, ignored), where_, " is a directory");
        archive_ = open_zip(where_, path, ZIP_CREATE | ZIP_TRUNCATE);
    }

    /// Errors, naming path and array: an empty or repeated name; a scale other than 1.
    template <NpyElement T>
    void add(std::string_view name, const Tensor<T>& tensor) {
        const std::string member = concatenate(name, ".npy"), where = concatenate(where_, ": ", member);
        check(archive_ != nullptr, where, " comes after close()");
        check(!name.empty(), where_, ": an array needs a name");
        check(zip_name_locate(archive_.get(), member.c_str(), 0) < 0, where, " is there already");
        std::string& bytes = members_.emplace_back(npy_preamble(where, tensor));
        bytes += npy_bytes(tensor);
        zip_source_t* const source = zip_source_buffer(archive_.get(), bytes.data(), bytes.size(), 0);
        const zip_int64_t index =
            source == nullptr ? -1 : zip_file_add(archive_.get(), member.c_str(), source, ZIP_FL_ENC_UTF_8);
        if (index < 0 && source != nullptr) zip_source_free(source);
        constexpr zip_uint16_t first_day = 1 << 5 | 1;  // 1 January 1980, as NumPy writes
        const auto at = static_cast<zip_uint64_t>(index);
        const bool good = index >= 0 && zip_set_file_compression(archive_.get(), at, method_, 0) == 0 &&
                          zip_file_set_dostime(archive_.get(), at, 0, first_day, 0) == 0;
        check(good, where, " cannot be added: ", zip_strerror(archive_.get()));
    }

    /// Writes the file. Error, naming the path, with libzip's reason.
    void close() {
        check(archive_ != nullptr && !members_.empty(), where_, ": no arrays, or closed before");
        if (zip_close(archive_.get()) != 0) fail(where_, " cannot be written: ", zip_strerror(archive_.get()));
        static_cast<void>(archive_.release());
    }

private:
    std::string where_;
    zip_int32_t method_;
    std::deque<std::string> members_;  // libzip reads them in close()
    Zip archive_;
};

/// Reads a .npz file, stored or deflated.
/// Errors, naming path and array: the file is missing or not a zip file; no such array; data that fails its checksum;
/// the errors of `read_npy`.
class NpzReader {
public:
    explicit NpzReader(const std::filesystem::path& path) : where_(concatenate("npz: ", path.string())) {
        std::error_code error;
        check(std::filesystem::is_regular_file(path, error), where_, " does not exist or is not a file");
        file_bytes_ = std::filesystem::file_size(path, error);
        archive_ = open_zip(where_, path, ZIP_RDONLY);
    }

    /// The arrays' names, in the order of the file.
    [[nodiscard]] std::vector<std::string> names() const {
        std::vector<std::string> result;
        for (zip_int64_t i = 0; i < zip_get_num_entries(archive_.get(), 0); ++i) {
            const char* const member = zip_get_name(archive_.get(), static_cast<zip_uint64_t>(i), 0);
            const std::string_view name = member == nullptr ? "" : member;
            if (name.ends_with(".npy")) result.emplace_back(name.substr(0, name.size() - 4));
        }
        return result;
    }

    /// The type of an array's elements as NumPy writes it: `<f4`, `|u1`.
    [[nodiscard]] std::string type(std::string_view name) const { return header(name).type; }
    [[nodiscard]] Shape shape(std::string_view name) const { return header(name).shape; }

    /// The array of the given name, with elements of type T.
    template <NpyElement T>
    [[nodiscard]] Tensor<T> load(std::string_view name) const {
        return with_member(name, true, [](const std::string& where, std::uint64_t total, auto read) {
            return read_npy<T>(where, total, read);
        });
    }

    /// The array of the given name, of numbers of any type, converted to T. Errors: see `read_npy_as`.
    template <NpyElement T>
    [[nodiscard]] Tensor<T> read_as(std::string_view name) const {
        return with_member(name, true, [](const std::string& where, std::uint64_t total, auto read) {
            return read_npy_as<T>(where, total, read);
        });
    }

private:
    /// Calls use(where, total, read) for the array's .npy file. `to_end`: it reads all of the file, so that the
    /// checksum is compared.
    template <class Use>
    [[nodiscard]] auto with_member(std::string_view name, bool to_end, Use use) const {
        const std::string member = concatenate(name, ".npy"), where = concatenate(where_, ": ", member);
        zip_stat_t facts;
        zip_stat_init(&facts);
        if (zip_stat(archive_.get(), member.c_str(), 0, &facts) != 0) fail(where, " is not there; ", list_of_names());
        // Refuse a size that deflate cannot reach from so few bytes, before anything is allocated for it.
        const bool possible = facts.comp_size <= file_bytes_ && facts.size / 1032 <= facts.comp_size;
        check((facts.valid & ZIP_STAT_SIZE) != 0 && possible, where, " has an impossible size");
        const std::unique_ptr<zip_file_t, int (*)(zip_file_t*)> file(zip_fopen(archive_.get(), member.c_str(), 0),
                                                                     zip_fclose);
        check(file != nullptr, where, " cannot be read: ", zip_strerror(archive_.get()));
        auto result = use(where, facts.size, [&file](char* to, std::size_t count) {
            return zip_fread(file.get(), to, count) == static_cast<zip_int64_t>(count);
        });
        char none = 0;
        const bool whole = !to_end || zip_fread(file.get(), &none, 1) == 0;  // libzip compares the checksum at the end
        check(whole, where, " is damaged: ", zip_file_strerror(file.get()));
        return result;
    }

    [[nodiscard]] NpyHeader header(std::string_view name) const {
        return with_member(name, false, [](const std::string& where, std::uint64_t total, auto read) {
            return read_npy_header(where, total, read);
        });
    }

    [[nodiscard]] std::string list_of_names() const {
        std::string list = "the file holds:";
        for (const std::string& name : names()) list.append(1, ' ').append(name);
        return list;
    }

    std::string where_;
    std::uintmax_t file_bytes_ = 0;
    Zip archive_;
};

/// Writes named tensors of one type in one call.
template <NpyElement T>
void save_npz(const std::filesystem::path& path, const std::map<std::string, Tensor<T>>& tensors,
              NpzCompression compression = NpzCompression::stored) {
    NpzWriter writer(path, compression);
    for (const auto& [name, tensor] : tensors) writer.add(name, tensor);
    writer.close();
}

/// All tensors of a file. They must have one type.
template <NpyElement T>
[[nodiscard]] std::map<std::string, Tensor<T>> load_npz(const std::filesystem::path& path) {
    const NpzReader reader(path);
    std::map<std::string, Tensor<T>> tensors;
    for (const std::string& name : reader.names()) tensors.emplace(name, reader.load<T>(name));
    return tensors;
}

}  // namespace unitscale::io
