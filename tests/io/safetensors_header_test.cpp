// SPDX-License-Identifier: MIT
#include <unitscale/io/safetensors_header.hpp>

#include "support/catch.hpp"

#include <cstdint>
#include <string>
#include <vector>

using namespace unitscale;
using namespace unitscale::io;

namespace {

SafetensorsHeader parse(std::string_view text, std::uint64_t bytes = 0) {
    return parse_safetensors_header("f", text, bytes);
}

/// The message of the error; "" without an error.
std::string message(std::string_view text, std::uint64_t bytes = 0) {
    try {
        static_cast<void>(parse(text, bytes));
    } catch (const Error& error) {
        return error.what();
    }
    return "";
}

std::string tensor(const std::string& name, const std::string& dtype, const std::string& shape,
                   const std::string& offsets) {
    return "\"" + name + R"(":{"dtype":)" + dtype + R"(,"shape":)" + shape + R"(,"data_offsets":)" + offsets + "}";
}
std::string good(const std::string& name, const std::string& offsets) { return tensor(name, "\"U8\"", "[4]", offsets); }

}  // namespace

TEST_CASE("a header gives names, types, shapes, places and metadata") {
    const SafetensorsHeader header = parse(
        R"({"__metadata__":{"step":"7","":"é"},"b":{"data_offsets":[8,12],"shape":[2,1],"dtype":"F16"},)"
        R"( "a":{"dtype":"F32","shape":[],"data_offsets":[0,4]},"c":{"dtype":"I32","shape":[1],"data_offsets":[4,8]},)"
        R"("none":{"dtype":"F64","shape":[3,0],"data_offsets":[8,8]}}  )",
        12);
    REQUIRE(header.tensors.size() == 4);
    CHECK(header.metadata.size() == 2);
    CHECK(header.metadata.at("step") == "7");
    CHECK(header.metadata.at("") == "é");
    const SafetensorsEntry& b = header.tensors.at("b");
    CHECK(b.dtype == "F16");
    CHECK(b.format == "fp16");
    CHECK(b.shape == Shape{2, 1});
    CHECK((b.begin == 8 && b.end == 12 && b.bytes() == 4));
    CHECK(header.tensors.at("a").shape.empty());
    CHECK(header.tensors.at("a").format.empty());
    CHECK(header.tensors.at("none").shape == Shape{3, 0});
    CHECK(parse("{}").tensors.empty());
    CHECK(parse(R"({"__metadata__":{}})").metadata.empty());
}

TEST_CASE("bytes are codes of the format that the metadata or the type name") {
    const SafetensorsHeader header = parse(
        R"({"__metadata__":{"unitscale.format.a":"e3m4","unitscale.format.b":"e3m4","unitscale.format.z":"e3m4"},)" +
            tensor("a", "\"U8\"", "[1]", "[0,1]") + "," + tensor("b", "\"I8\"", "[1]", "[1,2]") + "," +
            tensor("c", "\"F8_E4M3FNUZ\"", "[1]", "[2,3]") + "," + tensor("d", "\"U8\"", "[1]", "[3,4]") + "}",
        4);
    CHECK(header.tensors.at("a").format == "e3m4");
    CHECK(header.tensors.at("b").format.empty());
    CHECK(header.tensors.at("c").format == "e4m3fnuz");
    CHECK(header.tensors.at("d").format.empty());
}

TEST_CASE("a type that is not known is no error, but its place is checked") {
    CHECK(parse("{" + tensor("a", "\"F4\"", "[1000,1000]", "[0,3]") + "}", 3).tensors.at("a").dtype == "F4");
    CHECK(message("{" + tensor("a", "\"F4\"", "[1]", "[0,3]") + "}", 4) ==
          "f: the tensors have 3 bytes of data, the file 4");
}

TEST_CASE("every type of the table has the size and the format of its elements") {
    CHECK(safetensors_entry<double>().dtype == "F64");
    CHECK(safetensors_entry<float>().dtype == "F32");
    CHECK(safetensors_entry<Half>().dtype == "F16");
    CHECK(safetensors_entry<BFloat16>().dtype == "BF16");
    CHECK(safetensors_entry<Minifloat<e4m3>>().dtype == "F8_E4M3");
    CHECK(safetensors_entry<Minifloat<e5m2>>().dtype == "F8_E5M2");
    CHECK(safetensors_entry<Minifloat<fp16>>().dtype == "F16");
    CHECK(safetensors_entry<std::int64_t>().dtype == "I64");
    CHECK(safetensors_entry<std::int32_t>().dtype == "I32");
    CHECK(safetensors_entry<std::int16_t>().dtype == "I16");
    CHECK(safetensors_entry<std::int8_t>().dtype == "I8");
    CHECK(safetensors_entry<std::uint64_t>().dtype == "U64");
    CHECK(safetensors_entry<std::uint32_t>().dtype == "U32");
    CHECK(safetensors_entry<std::uint16_t>().dtype == "U16");
    CHECK(safetensors_entry<std::uint8_t>().dtype == "U8");
    CHECK(safetensors_entry<bool>().dtype == "BOOL");
    CHECK(safetensors_entry<Minifloat<e4m3fnuz>>().dtype == "U8");
    CHECK(safetensors_entry<Minifloat<e4m3fnuz>>().format == "e4m3fnuz");
    static_assert(!SafetensorsElement<Minifloat<tf32>> && !SafetensorsElement<std::string>);
    for (const SafetensorsType& type : safetensors_types) {
        CHECK(find_safetensors_type(type.name) == &type);
        if (!type.format.empty()) CHECK(find_format(type.format).code_bits() == 8 * static_cast<int>(type.bytes));
    }
    CHECK(find_safetensors_type("F4") == nullptr);
}

TEST_CASE("text that is no JSON object is refused, at its byte") {
    CHECK(message("") == "f: the header is no JSON object");
    CHECK(message(" {}") == "f: the header is no JSON object");
    CHECK(message("[]") == "f: the header is no JSON object");
    CHECK(message(std::string_view("{}\0", 3)) == "f: the header is no JSON object");
    CHECK(message("{") == "f: the header is no valid JSON at its byte 2");
    CHECK(message("{}}") == "f: the header is no valid JSON at its byte 3");
    CHECK(message(R"({"a":1e999})") == "f: the header is no valid JSON at its byte 10");
    CHECK(message("{\"a\xff\":{}}") == "f: the header is no valid JSON at its byte 4");
    CHECK(message("{\"a\n\":{}}") == "f: the header is no valid JSON at its byte 4");
}

TEST_CASE("foreign parts of a header are refused at their begin, however deeply they are nested") {
    const auto with = [](const std::string& dtype, const std::string& shape, const std::string& offsets) {
        return message("{" + tensor("a", dtype, shape, offsets) + "}", 4);
    };
    CHECK(with("\"U8\"", "[4]", "[0,4]").empty());
    CHECK(message(R"({"a":1})") == "f: tensor 'a': 1 where an object belongs");
    CHECK(message(R"({"a":[]})") == "f: tensor 'a': a list where an object belongs");
    CHECK(message(R"({"__metadata__":null})") == "f: __metadata__: null where an object belongs");
    CHECK(message(R"({"__metadata__":{"k":1}})") == "f: metadata 'k': 1 where a string belongs");
    CHECK(message(R"({"__metadata__":{"k":{}}})") == "f: metadata 'k': an object where a string belongs");
    CHECK(with("5", "[4]", "[0,4]") == "f: dtype of tensor 'a': 5 where a string belongs");
    CHECK(with("true", "[4]", "[0,4]") == "f: dtype of tensor 'a': true where a string belongs");
    CHECK(with("\"U8\"", "4", "[0,4]") == "f: shape of tensor 'a': 4 where a list belongs");
    CHECK(with("\"U8\"", "[[4]]", "[0,4]") == "f: shape of tensor 'a': a list where a size belongs");
    CHECK(with("\"U8\"", "[-4]", "[0,4]") == "f: shape of tensor 'a': -4 where a size belongs");
    CHECK(with("\"U8\"", "[4.0]", "[0,4]") == "f: shape of tensor 'a': '4.0' where a size belongs");
    CHECK(with("\"U8\"", "[18446744073709551616]", "[0,4]") ==
          "f: shape of tensor 'a': '18446744073709551616' where a size belongs");
    CHECK(with("\"U8\"", "[" + std::string(300, '9') + "]", "[0,4]") ==
          "f: shape of tensor 'a': '" + std::string(60, '9') + "...' where a size belongs");
    CHECK(with("\"U8\"", "[\"4\"]", "[0,4]") == "f: shape of tensor 'a': '4' where a size belongs");
    CHECK(with("\"U8\"", "[4]", "{}") == "f: data_offsets of tensor 'a': an object where a list belongs");
    CHECK(with("\"U8\"", "[4]", "[0]") == "f: data_offsets of tensor 'a': an end where an offset belongs");
    CHECK(with("\"U8\"", "[4]", "[0,4,8]") == "f: data_offsets of tensor 'a': 8 where an end belongs");
    std::string deep = "{\"a\":";
    for (int i = 0; i < 1'000'000; ++i) deep += '[';
    CHECK(message(deep) == "f: tensor 'a': a list where an object belongs");
}

TEST_CASE("keys that are missing, unknown or repeated are refused by name") {
    CHECK(message("{" + good("a", "[0,4]") + "," + good("a", "[4,8]") + "}", 8) == "f: tensor 'a' comes twice");
    CHECK(message(R"({"__metadata__":{"k":"1","k":"2"}})") == "f: metadata 'k' comes twice");
    CHECK(message(R"({"__metadata__":{},"__metadata__":{}})") == "f: __metadata__ comes twice");
    CHECK(message(R"({"a":{"dtype":"U8","dtype":"U8"}})") == "f: tensor 'a' has the key 'dtype' twice");
    CHECK(message(R"({"a":{"dtype":"U8","strides":[1]}})") == "f: tensor 'a' has the unknown key 'strides'");
    CHECK(message(R"({"a":{"dtype":"U8","shape":[]}})") == "f: tensor 'a' lacks one of dtype, shape and data_offsets");
    CHECK(message(R"({"a":{}})") == "f: tensor 'a' lacks one of dtype, shape and data_offsets");
}

TEST_CASE("tensors fill the data: no overlap, no hole, nothing outside, no size that does not fit the shape") {
    const auto two = [](const std::string& first, const std::string& second, std::uint64_t bytes) {
        return message("{" + good("a", first) + "," + good("b", second) + "}", bytes);
    };
    CHECK(two("[0,4]", "[4,8]", 8).empty());
    CHECK(two("[4,8]", "[0,4]", 8).empty());
    CHECK(two("[0,4]", "[4,8]", 9) == "f: the tensors have 8 bytes of data, the file 9");
    CHECK(two("[0,4]", "[4,8]", 7) == "f: tensor 'b' lies at bytes 4 to 8 of 7 bytes of data");
    CHECK(two("[0,4]", "[8,4]", 8) == "f: tensor 'b' lies at bytes 8 to 4 of 8 bytes of data");
    CHECK(two("[0,4]", "[3,7]", 8) ==
          "f: tensor 'b' begins at byte 3 of the data; expected 4, without overlap and hole");
    CHECK(two("[0,4]", "[0,4]", 8) ==
          "f: tensor 'b' begins at byte 0 of the data; expected 4, without overlap and hole");
    CHECK(two("[0,4]", "[5,9]", 9) ==
          "f: tensor 'b' begins at byte 5 of the data; expected 4, without overlap and hole");
    CHECK(two("[0,4]", "[4,18446744073709551615]", 8) ==
          "f: tensor 'b' lies at bytes 4 to 18446744073709551615 of 8 bytes of data");
    const auto shaped = [](const std::string& dtype, const std::string& shape) {
        return message("{" + tensor("a", dtype, shape, "[0,8]") + "}", 8);
    };
    CHECK(shaped("\"F32\"", "[2]").empty());
    CHECK(shaped("\"F32\"", "[2,2]") == "f: tensor 'a' has 8 bytes of data, but F32 of shape [2,2] needs 16");
    CHECK(shaped("\"F64\"", "[]").empty());
    CHECK(shaped("\"F64\"", "[0]") == "f: tensor 'a' has 8 bytes of data, but F64 of shape [0] needs 0");
    CHECK(shaped("\"F32\"", "[4611686018427387906,2]") ==
          "f: tensor 'a' has the impossible shape [4611686018427387906,2]");  // 8 (2^62 + 2) wraps around to 16
    CHECK(message("{" + tensor("a", "\"U8\"", "[0,3037000500,3037000500]", "[0,0]") + "}") ==
          "f: tensor 'a' has the impossible shape [0,3037000500,3037000500]");  // strides of more than 2^63 - 1
    CHECK(message("{" + tensor("a", "\"U8\"", "[3037000499,3037000499,0]", "[0,0]") + "}").empty());
    CHECK(shaped("\"U8\"", "[8,1,1,1,1,1,1,1,1,2]") ==
          "f: tensor 'a' has 8 bytes of data, but U8 of shape [8,1,1,1,1,1,1,1,...] of rank 10 needs 16");
}

TEST_CASE("text of a file stays on one line of a message, short and legible") {
    CHECK(quoted_text("a/b.ü") == "'a/b.ü'");
    CHECK(quoted_text("a\nb\x1b[0m\x7f") == "'a\\u000ab\\u001b[0m\\u007f'");
    CHECK(quoted_text("\u0085\u2028\u202e\u2066\ufeff") == "'\\u0085\\u2028\\u202e\\u2066\\ufeff'");
    CHECK(quoted_text(std::string_view("\0\xff\xc3", 3)) == "'\\u0000\\xff\\xc3'");
    CHECK(quoted_text(std::string(60, 'x')) == "'" + std::string(60, 'x') + "'");
    CHECK(quoted_text(std::string(61, 'x')) == "'" + std::string(60, 'x') + "...'");
    CHECK(quoted_text(std::string(59, 'x') + "ü") == "'" + std::string(59, 'x') + "...'");
    CHECK(is_utf8("aü\U0001F600"));
    CHECK(!is_utf8("a\xed\xa0\x80"));
    CHECK(message("{\"a\\nb\":1}") == "f: tensor 'a\\u000ab': 1 where an object belongs");
    CHECK(message("{\"" + std::string(100'000, 'x') + "\":1}") ==
          "f: tensor '" + std::string(60, 'x') + "...': 1 where an object belongs");
}
