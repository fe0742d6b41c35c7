// SPDX-License-Identifier: MIT
#include "experiments/words.hpp"
#include "support/catch.hpp"

#include <string>
#include <vector>

using namespace unitscale;
using Words = std::vector<std::string>;

TEST_CASE("words: runs of three and more letters, made small") {
    CHECK(experiments::words("The cat, a DOG; it isn't x1yes2no3abc") ==
          Words{"the", "cat", "dog", "isn", "yes", "abc"});
    CHECK(experiments::words("").empty());
    CHECK(experiments::words("a bc").empty());
    CHECK(experiments::words("abc") == Words{"abc"});
    CHECK(experiments::words("gr\xC3\xBC\xC3\x9F Gott\n") == Words{"gr\xC3\xBC\xC3\x9F", "gott"});
}

TEST_CASE("words: words that the text may have cut are left out where it is not whole") {
    CHECK(experiments::words("one two three", false) == Words{"two"});
    CHECK(experiments::words(" one two three ", false) == Words{"one", "two", "three"});
    CHECK(experiments::words("single", false).empty());
}

TEST_CASE("words: known words of a sample are counted, repeats too") {
    const auto count =
        experiments::count_known_words("cut The cat sat; xyz the end", "I saw the CAT that sat, at the end");
    CHECK(count.total == 5);  // the, cat, sat, xyz, the
    CHECK(count.known == 4);
    CHECK(count.share() == 0.8);
    CHECK(experiments::count_known_words("", "text").share() == 0.0);
    CHECK(experiments::count_known_words(" tex ", "text").known == 0);  // whole words, not parts
}
