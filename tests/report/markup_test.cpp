// SPDX-License-Identifier: MIT
#include <unitscale/report/markup.hpp>

#include "support/catch.hpp"
#include "support/page.hpp"

#include <string>

using namespace unitscale::report;
using unitscale::test::Page;
using unitscale::test::Texts;

TEST_CASE("markup: text is escaped for tags and quoted attributes, and only where it must be") {
    for (const std::string text : {"a <b> & \"c\"", "&lt;", "</p>", "<!--", "fp8-amax 2^-3 ünï 'x' > y;"}) {
        INFO(text);
        const Page page("<p title=\"" + escaped(text) + "\">" + escaped(text) + "</p>");
        CHECK(page.problems() == Texts{});
        CHECK(page.text() == text);
        REQUIRE(page.count("p") == 1);
        CHECK(page.all("p")[0]->attribute("title") == text);
    }
    CHECK(escaped("") == "");
    CHECK(escaped("fp8-amax 2^-3 ünï") == "fp8-amax 2^-3 ünï");
}

TEST_CASE("markup: numbers with a fixed number of decimals") {
    CHECK(fixed_decimals(2.0, 3) == "2.000");
    CHECK(fixed_decimals(-0.25, 1) == "-0.2");  // a tie goes to the even digit
    CHECK(fixed_decimals(1e5, 0) == "100000");
    CHECK(fixed_decimals(1e300, 1).size() == 303);
}

TEST_CASE("markup: the origin of a page names data, date and command; unknown facts are left out") {
    const PageSource all{.data = "a.txt b", .date = "2026-11-23", .command = "sweep --axis 'lr<2'", .machine = "avx2"};
    CHECK(source_text(all) == "data: a.txt b; date: 2026-11-23; command: sweep --axis 'lr<2'; processor: avx2");
    CHECK(source_text({.command = "x"}) == "command: x");
    CHECK(source_text({}).empty());
    CHECK(source_paragraph({}).empty());
    const std::string paragraph = source_paragraph(all);
    CHECK(paragraph.starts_with("\n<p "));  // a line of its own: tools that compare pages can leave it out
    CHECK(paragraph.ends_with("</p>\n"));
    const Page page(paragraph);
    CHECK(page.problems() == Texts{});
    CHECK(page.texts("p", "source") == Texts{source_text(all)});
}

TEST_CASE("markup: a page is whole and holds title, style and body in their places") {
    const std::string text = html_page("a < b", "p > b { }", "<p>x</p><div>y</div>");
    const Page page(text);
    CHECK(page.problems() == Texts{});
    CHECK(text.starts_with("<!DOCTYPE html>\n"));  // without it browsers use quirks mode
    CHECK(text.ends_with("</html>\n"));
    CHECK(page.texts("title") == Texts{"a < b"});
    CHECK(page.texts("style") == Texts{"p > b { }"});
    CHECK(page.texts("body") == Texts{"x y"});
    REQUIRE(page.count("meta") == 2);
    CHECK(page.all("meta")[0]->attribute("charset") == "utf-8");
    CHECK(page.all("meta")[1]->attribute("name") == "viewport");
    CHECK(page.all("meta")[1]->attribute("content") == "width=device-width, initial-scale=1");
    CHECK(page.parent(*page.all("style")[0]).name == "head");
    CHECK(page.parent(*page.all("p")[0]).name == "body");
    CHECK(page.all("html").at(0)->attribute("lang") == "en");
}
