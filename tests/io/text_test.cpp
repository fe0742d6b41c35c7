// SPDX-License-Identifier: MIT
#include <unitscale/io/text.hpp>

#include "support/catch.hpp"
#include "support/temporary_folder.hpp"

#include <filesystem>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

using namespace unitscale::io;
using unitscale::test::TemporaryFolder;
namespace fs = std::filesystem;

TEST_CASE("UTF-8 of one to four bytes decodes to code points and back") {
    const std::string bytes =
        "A\x7f\xc2\x80\xc3\xa9\xdf\xbf\xe0\xa0\x80\xe2\x82\xac\xed\x9f\xbf\xee\x80\x80\xef\xbf\xbf\xf0\x90\x80\x80\xf0"
        "\x9f\x98"
        "\x80\xf4\x8f\xbf\xbf";
    const std::u32string text = {0x41,   0x7F,   0x80,   0xE9,    0x7FF,   0x800,   0x20AC,
                                 0xD7FF, 0xE000, 0xFFFF, 0x10000, 0x1F600, 0x10FFFF};
    REQUIRE(decode_utf8(bytes) == text);
    REQUIRE(encode_utf8(text) == bytes);
    REQUIRE(decode_utf8("").empty());
    REQUIRE(decode_utf8(std::string_view("a\0b", 3)) == std::u32string_view(U"a\0b", 3));
}

TEST_CASE("every code point survives UTF-8 and surrogates are refused") {
    for (char32_t point = 0; point <= 0x10FFFF; ++point) {
        if (point == 0xD800) point = 0xE000;
        std::string bytes;
        append_utf8(bytes, point);
        const Utf8Sequence sequence = decode_utf8_sequence(bytes);
        if (sequence.code_point != point || sequence.length != bytes.size()) REQUIRE(sequence.code_point == point);
    }
    REQUIRE_THROWS_WITH(encode_utf8(std::u32string(1, static_cast<char32_t>(0xD800))),
                        "utf-8: 55296 is not a code point");
    REQUIRE_THROWS_WITH(encode_utf8(std::u32string(1, static_cast<char32_t>(0x110000))),
                        "utf-8: 1114112 is not a code point");
}

TEST_CASE(
    "bytes that are not UTF-8 are refused: overlong forms, surrogates, stray and missing bytes, beyond the last code "
    "point") {
    const std::vector<std::string> wrong = {"\x80",
                                            "\xbf",
                                            "\xc0\x80",
                                            "\xc1\xbf",
                                            "\xc2",
                                            "\xc2\x41",
                                            "\xc2\xc2",
                                            "\xe0\x80\x80",
                                            "\xe0\x9f\xbf",
                                            "\xe2\x82",
                                            "\xe2\x28\xa1",
                                            "\xe2\x82\x28",
                                            "\xed\xa0\x80",
                                            "\xed\xbf\xbf",
                                            "\xf0\x80\x80\x80",
                                            "\xf0\x8f\xbf\xbf",
                                            "\xf0\x9f\x98",
                                            "\xf0\x9f\x98\x28",
                                            "\xf4\x90\x80\x80",
                                            "\xf5\x80\x80\x80",
                                            "\xf8\x88\x80\x80\x80",
                                            "\xfe",
                                            "\xff"};
    for (const std::string& bytes : wrong) {
        INFO("first byte " << byte_name(static_cast<unsigned char>(bytes[0])) << ", length " << bytes.size());
        REQUIRE(decode_utf8_sequence(bytes).length == 0);
        REQUIRE_THROWS_WITH(
            decode_utf8("ab" + bytes, "corpus.txt"),
            "data: corpus.txt is not UTF-8: byte " + byte_name(static_cast<unsigned char>(bytes[0])) + " at offset 2");
    }
}

TEST_CASE("a byte that is not UTF-8 is named with its path and offset") {
    const TemporaryFolder folder;
    const fs::path file = folder.write("y.txt", "seventeen bytes: \xff and more");
    REQUIRE_THROWS_WITH(read_text(file), "data: " + file.string() + " is not UTF-8: byte 0xff at offset 17");
}

TEST_CASE("files that are missing, empty or no text are one line that names the path") {
    const TemporaryFolder folder;
    const std::string path = folder.path().string();
    REQUIRE_THROWS_WITH(read_text(folder.path() / "missing.txt"), "data: " + path + "/missing.txt does not exist");
    REQUIRE_THROWS_WITH(read_text(folder.write("empty.txt", "")), "data: " + path + "/empty.txt is empty");
    fs::create_directory(folder.path() / "images");
    static_cast<void>(folder.write("images/a.png", "text"));
    REQUIRE_THROWS_WITH(read_text(folder.path() / "images"),
                        "data: folder " + path + "/images holds no text (files *.txt, *.md, source files)");
    REQUIRE_THROWS_WITH(read_text(folder.path()),
                        "data: folder " + path + " holds no text (files *.txt, *.md, source files)");
    REQUIRE_THROWS_WITH(read_text(std::vector<fs::path>{}), "data: no path was given");
    REQUIRE_THROWS_WITH(read_bytes(folder.path()), "data: " + path + " cannot be read");
}

TEST_CASE("a folder is read in sorted order, without hidden files, build folders and other kinds of files") {
    const TemporaryFolder folder;
    for (const char* name :
         {"b.txt", "a/z.md", "a/b/CMakeLists.txt", "c.hpp", "c.cpp", "d.h", "d.c", "e.sh", "f.cmake", "g.json", "h.py"})
        static_cast<void>(folder.write(name, std::string(name) + "|"));
    for (const char* name : {"x.o", "README", ".hidden.txt", ".git/config.txt", "build/CMakeCache.txt",
                             "build/deep/b.txt", "a/.cache/c.txt", "txt"})
        static_cast<void>(folder.write(name, "wrong|"));
    std::vector<std::string> names;
    for (const fs::path& file : find_text_files(folder.path()))
        names.push_back(fs::relative(file, folder.path()).generic_string());
    REQUIRE(names == std::vector<std::string>{"a/b/CMakeLists.txt", "a/z.md", "b.txt", "c.cpp", "c.hpp", "d.c", "d.h",
                                              "e.sh", "f.cmake", "g.json", "h.py"});
    const std::string text = encode_utf8(read_text(folder.path()));
    REQUIRE(text.starts_with("a/b/CMakeLists.txt|\na/z.md|\nb.txt|\n"));
    REQUIRE(text.find("wrong") == std::string::npos);
}

TEST_CASE("several paths follow each other with a newline where one is missing") {
    const TemporaryFolder folder;
    const std::vector<fs::path> paths = {folder.write("1.txt", "one"), folder.write("2.txt", "two\n"),
                                         folder.write("3.data", "\xc3\xa9")};
    REQUIRE(read_text(paths) == U"one\ntwo\n\u00e9");  // a named file is read with any extension
    REQUIRE(read_text(paths[1]) == U"two\n");
    static_cast<void>(folder.write("0.txt", ""));  // an empty file in a folder is skipped
    REQUIRE(read_text(folder.path()) == U"one\ntwo\n");
}

TEST_CASE("a file larger than one buffer is read whole") {
    const TemporaryFolder folder;
    std::string bytes;
    for (int i = 0; i < 30000; ++i) bytes += std::to_string(i) + "\n";
    REQUIRE(read_bytes(folder.write("long.txt", bytes)) == bytes);
}

TEST_CASE("text: the length of a code point in UTF-8 is the length of what is written") {
    for (const char32_t point : {0x0u, 0x7Fu, 0x80u, 0x7FFu, 0x800u, 0xFFFFu, 0x10000u, 0x10FFFFu})
        CHECK(utf8_length(point) == encode_utf8(std::u32string(1, point)).size());
    CHECK((TextRange{1, 3} == TextRange{1, 3}));
    CHECK_FALSE((TextRange{1, 3} == TextRange{1, 4}));
}

TEST_CASE("bytes are cut into runs that are UTF-8 and runs that are not") {
    std::vector<std::pair<std::string, bool>> runs;
    const auto take = [&](std::string_view run, bool valid) { runs.emplace_back(run, valid); };
    unitscale::io::for_each_utf8_run("a\u65e5\xff\xe6\x97z\x80", take);
    REQUIRE(runs == std::vector<std::pair<std::string, bool>>{
                        {"a\u65e5", true}, {"\xff\xe6\x97", false}, {"z", true}, {"\x80", false}});
    runs.clear();
    unitscale::io::for_each_utf8_run("", take);
    REQUIRE(runs.empty());
    unitscale::io::for_each_utf8_run("\xff", take);
    REQUIRE(runs == std::vector<std::pair<std::string, bool>>{{"\xff", false}});
}
