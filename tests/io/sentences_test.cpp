// SPDX-License-Identifier: MIT
#include <unitscale/io/sentences.hpp>

#include "support/catch.hpp"

#include <string_view>
#include <vector>

using unitscale::io::split_sentences;
using Sentences = std::vector<std::string_view>;

TEST_CASE("sentences end after a full stop, an exclamation or a question mark before white space") {
    CHECK(split_sentences("It rained. Did it? It did!\tGood.") ==
          Sentences{"It rained.", "Did it?", "It did!", "Good."});
    CHECK(split_sentences("Pi is 3.14, at example.org") == Sentences{"Pi is 3.14, at example.org"});
    CHECK(split_sentences("Wait... what?!  No.") == Sentences{"Wait...", "what?!", "No."});
}

TEST_CASE("sentences end at line feeds, and are without white space at their ends") {
    CHECK(split_sentences("  One line\r\n\n another  line \nlast") == Sentences{"One line", "another  line", "last"});
    CHECK(split_sentences(". a. ") == Sentences{".", "a."});
    CHECK(split_sentences("").empty());
    CHECK(split_sentences(" \n \t").empty());
}
