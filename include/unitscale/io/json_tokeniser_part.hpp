// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/base/error.hpp>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace unitscale::io {

/// A part of a tokenizer.json, by the place of its key there. All its keys must be known: a tokeniser that is read in
/// part would give other ids.
class TokeniserPart {
public:
    using Json = nlohmann::ordered_json;

    TokeniserPart(const Json& json, std::string place) : json_(json), place_(std::move(place)) {
        if (!json_.is_object()) refuse("an object");
    }

    /// Error: a key that is not in the list.
    void know(std::initializer_list<std::string_view> keys) const {
        for (const auto& [key, value] : json_.items())
            if (std::find(keys.begin(), keys.end(), key) == keys.end())
                fail("tokeniser: ", where(), ": unknown key '", key, "'");
    }
    /// The type of a step. `known` lists the types for the error.
    [[nodiscard]] std::string type() const { return text("type"); }
    [[noreturn]] void refuse_type(std::string_view known) const {
        fail("tokeniser: ", where(), ": type '", type(), "'; expected ", known);
    }
    [[noreturn]] void refuse(std::string_view expected) const {
        fail("tokeniser: ", where(), " is ", shown(json_), "; expected ", expected);
    }

    /// Whether the key is there with a value other than null.
    [[nodiscard]] bool has(const char* key) const {
        const auto found = json_.find(key);
        return found != json_.end() && !found->is_null();
    }
    [[nodiscard]] const Json& at(const char* key) const {
        const auto found = json_.find(key);
        if (found == json_.end()) fail("tokeniser: ", where(), " has no key '", key, "'");
        return *found;
    }
    [[nodiscard]] TokeniserPart part(const char* key) const { return {at(key), place(key)}; }
    /// The elements of a list of objects.
    [[nodiscard]] std::vector<TokeniserPart> parts(const char* key) const {
        if (!at(key).is_array()) refuse(key, "a list");
        std::vector<TokeniserPart> all;
        for (std::size_t i = 0; i < at(key).size(); ++i) all.emplace_back(at(key)[i], concatenate(place(key), '.', i));
        return all;
    }
    [[nodiscard]] std::string text(const char* key) const {
        if (!at(key).is_string()) refuse(key, "a text");
        return at(key).get<std::string>();
    }
    [[nodiscard]] bool flag(const char* key, bool usual) const {
        if (!has(key)) return usual;
        if (!at(key).is_boolean()) refuse(key, "true or false");
        return at(key).get<bool>();
    }
    [[nodiscard]] std::int32_t number(const char* key) const {
        const Json& found = at(key);
        const bool whole = found.is_number_unsigned() && found.get<double>() < 0x1p31;
        if (!whole) refuse(key, "a whole number from 0 to below 2^31");
        return found.get<std::int32_t>();
    }
    /// The place of a value in a list of names.
    template <std::size_t N>
    [[nodiscard]] std::size_t choice(const char* key, const std::array<std::string_view, N>& names) const {
        const std::string found = text(key);
        const auto place = std::find(names.begin(), names.end(), found);
        std::string known;
        for (const std::string_view name : names) (known += known.empty() ? "" : ", ") += name;
        if (place == names.end()) refuse(key, "one of " + known);
        return static_cast<std::size_t>(place - names.begin());
    }
    [[noreturn]] void refuse(const char* key, std::string_view expected) const {
        fail("tokeniser: ", place(key), " is ", shown(at(key)), "; expected ", expected);
    }
    [[nodiscard]] std::string place(const char* key) const {
        return place_.empty() ? std::string(key) : concatenate(place_, '.', key);
    }

private:
    [[nodiscard]] std::string where() const { return place_.empty() ? "the file" : place_; }
    [[nodiscard]] static std::string shown(const Json& json) {
        const std::string text = json.dump(-1, ' ', true, Json::error_handler_t::replace);
        return text.size() <= 40 ? text : text.substr(0, 37) + "...";
    }

    const Json& json_;
    std::string place_;
};

}  // namespace unitscale::io
