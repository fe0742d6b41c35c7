// SPDX-License-Identifier: MIT
#include <unitscale/analysis/report_page.hpp>

#include "support/catch.hpp"

#include <string>

using unitscale::analysis::report_page;

TEST_CASE("report page: one page with title, data and script, which asks nothing of the network") {
    const std::string page = report_page("a <b> & c", "{\"runs\":[]}");
    CHECK(page.starts_with("<!DOCTYPE html>\n"));
    CHECK(page.ends_with("</html>\n"));
    CHECK(page.find("<title>a &lt;b> &amp; c</title>") != std::string::npos);
    CHECK(page.find("const data = {\"runs\":[]};") != std::string::npos);
    for (const char* word : {"http:", "https:", "src=", "@import", "fetch(", "url("}) {
        INFO(word);
        CHECK(page.find(word) == std::string::npos);
    }
    CHECK(page.find("prefers-color-scheme: dark") != std::string::npos);
    // Exactly one style and one script: nothing inside ends them early.
    for (const char* end : {"</style>", "</script>"}) CHECK(page.find(end) == page.rfind(end));
}

TEST_CASE("report page: what the script looks up by name is in the markup") {
    const std::string page = report_page("t", "{}");
    std::size_t names = 0;
    for (std::size_t at = page.find("$('"); at != std::string::npos; at = page.find("$('", at + 1), ++names) {
        const std::string name = page.substr(at + 3, page.find('\'', at + 3) - at - 3);
        INFO(name);
        CHECK(page.find("id=\"" + name + "\"") != std::string::npos);
    }
    CHECK(names > 10);
}
