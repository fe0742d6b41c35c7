// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/base/error.hpp>
#include <unitscale/formats/accumulate.hpp>
#include <unitscale/formats/block_format.hpp>
#include <unitscale/formats/format.hpp>
#include <unitscale/io/format_fields.hpp>
#include <unitscale/scaling/recipe.hpp>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <concepts>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

// Visitors that write and read fields as JSON. A function that lists the fields of a type serves both.
// Test: tests/io/json_fields_test.cpp
namespace unitscale::io {

/// Names, joined for an error message.
template <class Names>
[[nodiscard]] std::string joined(const Names& names) {
    std::string text;
    for (const auto& name : names) (text += text.empty() ? "" : ", ") += name;
    return text;
}

/// Writes the fields that are described to it as a JSON object.
class JsonWriter {
public:
    template <class T>
    void field(const char* name, const T& value) {
        json_[name] = value;
    }
    template <class Enum, std::size_t N>
    void choice(const char* name, const Enum& value, const std::array<std::string_view, N>& names) {
        json_[name] = names[static_cast<std::size_t>(value)];
    }
    /// A number, or the word `word` where `flag` is set.
    void number_or(const char* name, std::uint32_t number, bool flag, const char* word) {
        if (flag) json_[name] = word;
        else json_[name] = number;
    }
    void format(const char* name, const FloatFormat& format) {
        const std::string known = unitscale::name(format);
        const auto named = [&](const NamedFormat& entry) { return entry.format == format; };
        if (std::any_of(named_formats.begin(), named_formats.end(), named) || known.starts_with("p3109"))
            json_[name] = known;
        else
            json_[name] = {{"exponent_bits", format.exponent_bits},
                           {"mantissa_bits", format.mantissa_bits},
                           {"bias", format.bias},
                           {"specials", static_cast<int>(format.specials)},
                           {"sign_bits", format.sign_bits}};
    }
    void format(const char* name, const std::optional<FloatFormat>& format, const char* none) {
        if (format) this->format(name, *format);
        else json_[name] = none;
    }
    template <class T, class Describe>
    void object(const char* name, T& value, Describe&& describe, const char* = nullptr) {
        JsonWriter inner;
        describe(inner, value);
        json_[name] = std::move(inner.json_);
    }
    template <class T, class Describe>
    void optional(const char* name, std::optional<T>& value, const char*, Describe&& describe) {
        if (value) object(name, *value, describe);
        else json_[name] = nullptr;
    }
    /// A field of later versions: it is written only if it is set, so that recipes without it keep their text.
    template <class Describe>
    void operand(const char* name, std::optional<OperandRule>& rule, const OperandRule& of_role, Describe&& describe) {
        if (!rule) return;
        object(name, *rule, describe);
        // What is left out is read as the role's.
        if (of_role.scale.blocks && !rule->scale.blocks) json_[name]["scale"]["blocks"] = nullptr;
    }
    template <class T, class Describe>
    void added(const char* name, std::optional<T>& value, Describe&& describe, const char* = nullptr) {
        if (value) object(name, *value, describe);
    }
    void added_number(const char* name, const std::optional<double>& value) {
        if (value) json_[name] = *value;
    }
    template <class T>
    void added_field(const char* name, const T& value, const T& usual) {
        if (value != usual) json_[name] = value;
    }
    template <class Enum, std::size_t N>
    void added_choice(const char* name, const Enum& value, Enum usual, const std::array<std::string_view, N>& names) {
        if (value != usual) choice(name, value, names);
    }
    /// An object of such fields.
    template <class T, class Describe>
    void group(const char* name, T& value, Describe&& describe) {
        object(name, value, describe);
        if (json_[name].empty()) json_.erase(name);
    }
    void blocks(const char* name, std::optional<BlockFormat>& blocks) {
        if (!blocks) return;
        if (const std::string known = unitscale::name(*blocks); known_block_format(known) == *blocks)
            json_[name] = known;
        else object(name, *blocks, [](auto& v, BlockFormat& format) { describe_blocks(v, format); });
    }
    void accumulate(const char* name, std::optional<Accumulate>& sums) {
        if (!sums) return;
        for (const NamedAccumulate& known : named_accumulate)
            if (known.sums == *sums) return field(name, known.name);
        object(name, *sums, [](auto& v, Accumulate& how) { describe_accumulate(v, how); });
    }
    template <class T, class Describe>
    void list(const char* name, std::vector<T>& values, Describe&& describe) {
        json_[name] = nlohmann::ordered_json::array();
        for (T& value : values) {
            JsonWriter inner;
            describe(inner, value);
            json_[name].push_back(std::move(inner.json_));
        }
    }
    [[nodiscard]] const nlohmann::ordered_json& json() const noexcept { return json_; }

private:
    nlohmann::ordered_json json_ = nlohmann::ordered_json::object();
};

/// Reads a JSON object into the fields that are described to it. Absent fields keep their values. Errors name the place
/// of the key ("products.0.gradient.format"), the value found and the value expected.
class JsonReader {
public:
    JsonReader(const nlohmann::ordered_json& json, std::string place) : json_(json), place_(std::move(place)) {
        check(json.is_object(), "recipe: ", place_.empty() ? "the text" : place_, " is ", shown(json),
              "; expected an object");
    }

    void field(const char* name, bool& value) {
        if (const auto* found = find(name)) value = get<bool>(name, *found, found->is_boolean(), "true or false");
    }
    void field(const char* name, std::string& value) {
        if (const auto* found = find(name)) value = get<std::string>(name, *found, found->is_string(), "a text");
    }
    void field(const char* name, double& value) {
        if (const auto* found = find(name)) value = get<double>(name, *found, found->is_number(), "a number");
    }
    template <std::integral T>
        requires(!std::same_as<T, bool>)
    void field(const char* name, T& value) {
        const auto* found = find(name);
        if (found == nullptr) return;
        const auto least = static_cast<double>(std::is_signed_v<T> ? -1'000'000'000 : 0);
        const bool whole = found->is_number_integer() && found->get<double>() >= least && found->get<double>() <= 1e9;
        value = get<T>(name, *found, whole, std::is_signed_v<T> ? "a whole number" : "a whole number, not negative");
    }
    template <class Enum, std::size_t N>
    void choice(const char* name, Enum& value, const std::array<std::string_view, N>& names) {
        const auto* found = find(name);
        if (found == nullptr) return;
        const auto at = found->is_string() ? std::find(names.begin(), names.end(), found->get_ref<const std::string&>())
                                           : names.end();
        check(at != names.end(), "recipe: ", place(name), " is ", shown(*found), "; expected one of ", joined(names));
        value = static_cast<Enum>(at - names.begin());
    }
    void number_or(const char* name, std::uint32_t& number, bool& flag, const char* word) {
        const auto* found = find(name);
        if (found == nullptr) return;
        flag = *found == word;
        if (flag) return;
        const bool fits = found->is_number_unsigned() && found->get<double>() < 0x1p32;
        check(fits, "recipe: ", place(name), " is ", shown(*found), "; expected '", word,
              "' or a whole number below 2^32");
        number = found->get<std::uint32_t>();
    }
    void format(const char* name, FloatFormat& format) {
        const auto* found = find(name);
        if (found == nullptr) return;
        if (found->is_string()) {
            try {
                format = find_format(found->get_ref<const std::string&>());
            } catch (const Error& error) {
                fail("recipe: ", place(name), ": ", error.what());
            }
            return;
        }
        JsonReader inner(*found, place(name));
        int specials = static_cast<int>(format.specials);
        inner.field("exponent_bits", format.exponent_bits);
        inner.field("mantissa_bits", format.mantissa_bits);
        inner.field("bias", format.bias);
        inner.field("specials", specials);
        inner.field("sign_bits", format.sign_bits);
        inner.finish();
        check(specials >= 0 && specials <= static_cast<int>(Specials::scale), "recipe: ", place(name), ".specials is ",
              specials, "; expected a number in [0,", static_cast<int>(Specials::scale), "]");
        format.specials = static_cast<Specials>(specials);
        if (const auto message = problem(format); !message.empty()) fail("recipe: ", place(name), ": ", message);
    }
    /// The text `none` stands for no format.
    void format(const char* name, std::optional<FloatFormat>& format, const char* none) {
        const auto* found = find(name);
        if (found == nullptr) return;
        if (*found == none) return format.reset();
        this->format(name, format ? *format : format.emplace(fp32));
    }
    /// A text stands for an object with the field `shorthand`; its other fields have their defaults.
    template <class T, class Describe>
    void object(const char* name, T& value, Describe&& describe, const char* shorthand = nullptr) {
        const auto* found = find(name);
        if (found == nullptr) return;
        if (found->is_string() && shorthand != nullptr)
            read(nlohmann::ordered_json{{shorthand, *found}}, place(name), value = T{}, describe);
        else read(*found, place(name), value, describe);
    }
    /// null stands for an empty optional.
    template <class T, class Describe>
    void optional(const char* name, std::optional<T>& value, const char* shorthand, Describe&& describe) {
        const auto* found = find(name);
        if (found == nullptr) return;
        if (found->is_null()) return value.reset();
        object(name, value ? *value : value.emplace(), describe, shorthand);
    }
    template <class T, class Describe>
    void added(const char* name, std::optional<T>& value, Describe&& describe, const char* shorthand = nullptr) {
        optional(name, value, shorthand, describe);
    }
    /// null stands for no number.
    void added_number(const char* name, std::optional<double>& value) {
        const auto* found = find(name);
        if (found == nullptr) return;
        if (found->is_null()) return value.reset();
        field(name, value ? *value : value.emplace());
    }
    template <class T>
    void added_field(const char* name, T& value, const T&) {
        field(name, value);
    }
    template <class Enum, std::size_t N>
    void added_choice(const char* name, Enum& value, Enum, const std::array<std::string_view, N>& names) {
        choice(name, value, names);
    }
    template <class T, class Describe>
    void group(const char* name, T& value, Describe&& describe) {
        object(name, value, describe);
    }
    /// A text is the name of a block format, or of an element format. null: the rule of the role holds. An object
    /// changes fields of the operand's rule, or of its role's rule.
    template <class Describe>
    void operand(const char* name, std::optional<OperandRule>& rule, const OperandRule& of_role, Describe&& describe) {
        const auto* found = find(name);
        if (found == nullptr) return;
        if (found->is_null()) return rule.reset();
        if (found->is_string()) {
            const auto format = known_block_format(found->get_ref<const std::string&>());
            rule = format ? OperandRule::in_blocks(*format) : OperandRule{};
            if (format) return;
        }
        object(name, rule ? *rule : rule.emplace(of_role), describe, "element");
    }
    /// A name, an object of fields, or null.
    void blocks(const char* name, std::optional<BlockFormat>& blocks) {
        const auto* found = find(name);
        if (found == nullptr) return;
        if (found->is_null()) return blocks.reset();
        if (!found->is_string()) {
            read(*found, place(name), blocks ? *blocks : blocks.emplace(),
                 [](auto& v, BlockFormat& format) { describe_blocks(v, format); });
            return;
        }
        try {
            blocks = find_block_format(found->get_ref<const std::string&>());
        } catch (const Error& error) {
            fail("recipe: ", place(name), ": ", error.what());
        }
    }
    /// A name, an object of fields, or null.
    void accumulate(const char* name, std::optional<Accumulate>& sums) {
        const auto* found = find(name);
        if (found == nullptr) return;
        if (found->is_null()) return sums.reset();
        if (!found->is_string()) {
            read(*found, place(name), sums ? *sums : sums.emplace(),
                 [](auto& v, Accumulate& how) { describe_accumulate(v, how); });
            return;
        }
        std::string names;
        for (const NamedAccumulate& known : named_accumulate) {
            if (*found == known.name) sums = known.sums;
            (names += names.empty() ? "" : ", ") += known.name;
        }
        const auto known = [&](const NamedAccumulate& named) { return *found == named.name; };
        check(std::any_of(named_accumulate.begin(), named_accumulate.end(), known), "recipe: ", place(name), " is ",
              shown(*found), "; expected one of ", names, ", or an object");
    }
    template <class T, class Describe>
    void list(const char* name, std::vector<T>& values, Describe&& describe) {
        const auto* found = find(name);
        if (found == nullptr) return;
        check(found->is_array(), "recipe: ", place(name), " is ", shown(*found), "; expected a list");
        values.assign(found->size(), T{});
        for (std::size_t i = 0; i < values.size(); ++i)
            read((*found)[i], concatenate(place(name), '.', i), values[i], describe);
    }
    /// Error: the object has a key that no field has read.
    void finish() const {
        for (const auto& [key, value] : json_.items())
            check(std::find(known_.begin(), known_.end(), key) != known_.end(), "recipe: unknown key '",
                  place(key.c_str()), "'; expected one of ", joined(known_));
    }

private:
    template <class T, class Describe>
    static void read(const nlohmann::ordered_json& json, const std::string& place, T& value, Describe&& describe) {
        JsonReader inner(json, place);
        describe(inner, value);
        inner.finish();
    }
    template <class T>
    [[nodiscard]] T get(const char* name, const nlohmann::ordered_json& found, bool fits, const char* expected) const {
        check(fits, "recipe: ", place(name), " is ", shown(found), "; expected ", expected);
        return found.get<T>();
    }
    [[nodiscard]] const nlohmann::ordered_json* find(const char* name) {
        if (std::find(known_.begin(), known_.end(), name) == known_.end())
            known_.emplace_back(name);  // `optional` reads a key twice
        const auto found = json_.find(name);
        return found == json_.end() ? nullptr : &*found;
    }
    [[nodiscard]] std::string place(const char* name) const {
        return place_.empty() ? std::string(name) : place_ + "." + name;
    }
    [[nodiscard]] static std::string shown(const nlohmann::ordered_json& json) {
        const std::string text = json.dump(-1, ' ', true, nlohmann::ordered_json::error_handler_t::replace);
        return text.size() <= 40 ? text : text.substr(0, 37) + "...";
    }

    const nlohmann::ordered_json& json_;
    std::string place_;
    std::vector<std::string> known_{};
};

}  // namespace unitscale::io
