// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/base/error.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace unitscale::io {

/// The names of BERT's special tokens, in the order in which trained vocabularies begin with them.
inline constexpr std::array<std::string_view, 5> bert_token_names = {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"};

/// The ids of BERT's special tokens, and the number of tokens. `io::WordPiece::special()` gives them; data that another
/// tokeniser made needs them too.
/// Reference: Devlin, Chang, Lee, Toutanova 2019, arXiv:1810.04805.   Test: tests/io/bert_tokens_test.cpp
struct BertTokens {
    std::int32_t pad = 0;         ///< fills rows up to their length
    std::int32_t unknown = 1;     ///< a word that the vocabulary cannot write
    std::int32_t cls = 2;         ///< the first token of a row
    std::int32_t separator = 3;   ///< ends a segment
    std::int32_t mask = 4;        ///< stands for a token that the model has to find
    std::int32_t vocabulary = 0;  ///< the number of tokens, special ones included

    /// In the order of `bert_token_names`.
    [[nodiscard]] constexpr std::array<std::int32_t, 5> ids() const noexcept {
        return {pad, unknown, cls, separator, mask};
    }
    [[nodiscard]] constexpr bool is_special(std::int32_t id) const noexcept {
        return id == pad || id == unknown || id == cls || id == separator || id == mask;
    }
    /// Error: a special id outside the vocabulary, or two equal ones.
    void check_ids() const {
        const auto special = ids();
        for (std::size_t i = 0; i < special.size(); ++i) {
            check(special[i] >= 0 && special[i] < vocabulary, "BertTokens: ", bert_token_names[i], " is id ",
                  special[i], "; expected an id of the vocabulary of ", vocabulary, " tokens");
            for (std::size_t j = 0; j < i; ++j)
                check(special[i] != special[j], "BertTokens: ", bert_token_names[j], " and ", bert_token_names[i],
                      " are both id ", special[i]);
        }
    }

    friend constexpr bool operator==(const BertTokens&, const BertTokens&) = default;
};

}  // namespace unitscale::io
