// SPDX-License-Identifier: MIT
#include <unitscale/analysis/markup.hpp>

#include "support/catch.hpp"

using namespace unitscale::analysis;

TEST_CASE("markup: text is escaped for tags and quoted attributes, and only where it must be") {
    CHECK(escaped("a <b> & \"c\"") == "a &lt;b> &amp; &quot;c&quot;");
    CHECK(escaped("") == "");
    CHECK(escaped("fp8-amax 2^-3 ünï") == "fp8-amax 2^-3 ünï");
}

TEST_CASE("markup: a page is whole and holds title, style and body in their places") {
    CHECK(html_page("a < b", "p { }", "<p>x</p>") ==
          "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">"
          "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"><title>a &lt; b</title>"
          "<style>p { }</style></head><body><p>x</p></body></html>\n");
}
