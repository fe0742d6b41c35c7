// SPDX-License-Identifier: MIT
#include <unitscale/report/report_page.hpp>

#include "support/catch.hpp"
#include "support/page.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <limits>
#include <set>
#include <string>
#include <vector>

using unitscale::report::report_page;
using unitscale::report::script_json;
using unitscale::test::Page;
using unitscale::test::PageElement;
using unitscale::test::Texts;

TEST_CASE("report page: one page with title, data and script, which asks nothing of the network") {
    const Page page(report_page("a <b> & c", {{"runs", {"a & b > c"}}}));
    CHECK(page.problems() == Texts{});
    CHECK(page.links() == Texts{});
    CHECK(page.requests() == Texts{});
    CHECK(page.texts("title") == Texts{"a <b> & c"});
    // Exactly one style and one script: nothing inside ends them early.
    REQUIRE(page.count("style") == 1);
    REQUIRE(page.count("script") == 1);
    const std::string script = page.texts("script")[0], style = page.texts("style")[0];
    CHECK(script.find("const data = {\"runs\":[\"a \\u0026 b \\u003e c\"]};\n") != std::string::npos);
    CHECK(script.ends_with(unitscale::report::report_script));
    CHECK(style == unitscale::report::report_style);
    CHECK(style.find("prefers-color-scheme: dark") != std::string::npos);
    CHECK(page.parent(*page.all("script")[0]).name == "body");  // after the elements that it looks up
    CHECK(page.says("This page draws its figures with a script"));
    CHECK(page.texts("option") == Texts{"start and end", "start of training", "end of training"});
    CHECK(page.count("p", "source") == 0);
    // Letters of the axes keep their width when the window changes.
    CHECK(script.find("addEventListener('resize', drawAxes)") != std::string::npos);
    const Page made(report_page("t", nlohmann::ordered_json::object(), {.data = "a.txt", .command = "x <y>"}));
    CHECK(made.problems() == Texts{});
    CHECK(made.texts("p", "source") == Texts{"data: a.txt; command: x <y>"});
    REQUIRE(made.count("main") == 1);
    CHECK(&made.parent(*made.all("p", "source").at(0)) == made.all("main")[0]);
}

TEST_CASE("report page: any string in the data reads back equal and cannot end the script") {
    const std::string nasty = "</script><b>\"quoted\" \\ & \n\t\x01 \xc3\xa9";
    const std::string text = script_json({{nasty, nasty}});
    CHECK(nlohmann::json::parse(text).at(nasty).get<std::string>() == nasty);
    for (const char c : {'<', '>', '&'}) CHECK(text.find(c) == std::string::npos);
    const Page page(report_page("t", {{nasty, nasty}}));
    CHECK(page.problems() == Texts{});
    CHECK(page.count("script") == 1);
    CHECK(page.count("b") == 0);
    CHECK(script_json({{"a", "\xff"}}) == "{\"a\":\"\xef\xbf\xbd\"}");  // not UTF-8
}

TEST_CASE("report page: numbers read back equal; NaN and infinity are null") {
    for (const double x : {0.1, 1e300, -5e-324, 1.0 / 3.0, 65504.0, 0.0})
        CHECK(nlohmann::json::parse(script_json(x)).get<double>() == x);
    CHECK(script_json(std::numeric_limits<double>::infinity()) == "null");
    CHECK(script_json(std::numeric_limits<double>::quiet_NaN()) == "null");
}

TEST_CASE("report page: every element that the script looks up by name is in the markup") {
    const Page page(report_page("t", nlohmann::ordered_json::object()));
    std::set<std::string> there, wanted;
    for (const PageElement& element : page.elements())
        if (element.attributes.contains("id")) there.insert(element.attribute("id"));
    const std::string script = page.texts("script").at(0);
    for (std::size_t at = script.find("$('"); at != std::string::npos; at = script.find("$('", at + 1))
        wanted.insert(script.substr(at + 3, script.find('\'', at + 3) - at - 3));
    // All ids serve the script: an id that the script does not name is a mistake.
    CHECK(wanted == there);
    CHECK(wanted == std::set<std::string>{"alerts", "count", "filter", "log", "model", "module", "runs", "title",
                                          "when", "worst"});
    const auto pictures = page.all("svg");
    const auto axes = std::count_if(pictures.begin(), pictures.end(), [](const PageElement* picture) {
        return picture->attributes.contains("data-axis");
    });
    CHECK(axes == 4);  // activations, weights, and the gradients of both
}

TEST_CASE("pages: the reader gives text, cells, places of elements, links and points of curves") {
    const Page page(
        "<p id=\"a\">x &lt; <b>y</b>\n  z &amp;&quot;</p><p>second</p>"
        "<table class=\"big "
        "heat\"><caption>c</caption><tr><th>1</th><th>2</th></tr>\n<tr><td>3<br>4</td><td></td></tr></table>"
        "<a href=\"#a\">up</a><svg viewBox=\"0 0 1 1\"><g><path d=\"M0.5 1L-2 3M4 5\"/></g>"
        "<path d=\"M0 0L1 0Z\"/><path d=\"M0 6H22\"/><text>2<tspan>3</tspan></text></svg>");
    CHECK(page.problems() == Texts{});
    CHECK(page.text() == "x < y z &\" second c 1 2 3 4 up 23");
    CHECK(page.says("second c"));
    CHECK_FALSE(page.says("third"));
    CHECK(page.texts("p") == Texts{"x < y z &\"", "second"});
    CHECK(page.texts("b", "", page.all("p")[1]).empty());
    CHECK(page.texts("b", "", page.all("p")[0]) == Texts{"y"});
    CHECK(page.count("table", "heat") == 1);
    CHECK(page.count("table", "hea") == 0);
    REQUIRE(page.count("table") == 1);
    CHECK(page.rows(*page.all("table")[0]) == std::vector<Texts>{{"1", "2"}, {"3 4", ""}});
    CHECK(page.links() == Texts{"#a"});
    CHECK(page.requests() == Texts{});
    const auto paths = page.all("path");
    REQUIRE(paths.size() == 3);
    CHECK(page.parent(*paths[0]).name == "g");
    const auto lines = lines_of(*paths[0]);
    REQUIRE(lines.size() == 2);
    REQUIRE(lines[0].size() == 2);
    CHECK(lines[0][0].x == 0.5);
    CHECK(lines[0][0].y == 1.0);
    CHECK(lines[0][1].x == -2.0);
    CHECK(lines[0][1].y == 3.0);
    CHECK(lines[1].size() == 1);
    REQUIRE(lines_of(*paths[1]).size() == 1);
    CHECK(lines_of(*paths[1])[0].size() == 3);  // closed: the first point again
    CHECK(lines_of(*paths[2]).empty());         // has a horizontal line, which the reader does not follow
}

TEST_CASE("pages: the reader finds faults that browsers repair silently") {
    const std::string head = "<!DOCTYPE html>\n<html lang=\"en\"><head><title>t</title></head>";
    const std::string svg = "<svg xmlns=\"http://www.w3.org/2000/svg\">";
    struct Broken {
        std::string markup, problem;
    };
    const std::vector<Broken> pages = {
        // Tags.
        {"<div>\n<p>x</div>", "line 2: </div> stands where <p> is open"},
        {"<div><p>x</p>", "<div> is not closed"},
        {"x</p>\n", "line 1: </p> closes nothing"},
        {"<p>x</p", "line 1: </p has no >"},
        {"<div/>\n", "line 1: <div/> is not empty in HTML"},
        {"<input></input>\n", "line 1: </input> closes nothing"},
        {"<svg xmlns=\"http://www.w3.org/2000/svg\"><path></svg>\n", "line 1: </svg> stands where <path> is open"},
        {"<tabel></tabel>", "line 1: <tabel> is unknown"},
        {svg + "<div></div></svg>", "line 1: <div> is unknown in a picture"},
        {"1 < 2", "line 1: < stands in text"},
        {"<script>if (a < b) f('<p>');", "<script> is not closed"},
        // Attributes.
        {"<p id=a>x</p>", "line 1: id of <p> is not quoted"},
        {"<p \"a\">x</p>", "line 1: what is no attribute of <p> is not quoted"},
        {"<p id=\"a\"class=\"b\">x</p>", "line 1: class of <p> has no blank before it"},
        {"<p class=\"a\" class=\"b\">x</p>", "line 1: <p> has class twice"},
        {"<p class>x</p>", "line 1: class of <p> has no value"},
        {"<p title=\"a<b\">x</p>", "line 1: title of <p> holds <"},
        {"<p id=\"a>x</p>", "<p> is not closed"},
        {svg + "<path data-x/></svg>", "line 1: data-x of <path> has no value"},  // XML has no attributes without value
        {svg + "<path d=\"M0 nan\"/></svg>", "line 1: d of <path> is not finite: M0 nan"},
        {svg + "<rect x=\"-inf\"/></svg>", "line 1: x of <rect> is not finite: -inf"},
        // Entities.
        {"<p>a & b</p>", "line 1: & b is no entity"},
        {"<p>&lt</p>", "line 1: &lt is no entity"},
        {"<p>&middot;</p>", "line 1: &middot; is no entity"},
        {"<p title=\"a&b\">x</p>", "line 1: &b is no entity"},
        // Places.
        {"<div><td>x</td></div>", "line 1: <td> stands in <div>"},
        {"<table><td>x</td></table>", "line 1: <td> stands in <table>"},
        {"<table><tr><div></div></tr></table>", "line 1: <div> stands in <tr>"},
        {"<table>x<tr></tr></table>", "line 1: text stands in <table>: x"},
        {"<p><div></div></p>", "line 1: <div> stands in <p>"},
        {"<li>x</li>", "line 1: <li> stands in <>"},
        // Names and what refers to them.
        {"<p id=\"a\">x</p><p id=\"a\">y</p>", "two elements have the id a"},
        {"<p id=\"a\">x</p><a href=\"#b\">y</a>", "href refers to b, which is not there"},
        {"<label for=\"b\">y</label>", "for refers to b, which is not there"},
        {svg + "<path fill=\"url(#shade)\"/></svg>", "fill refers to shade, which is not there"},
        // Whole pages and pictures.
        {head + "<body>x</body>", "<html> is not closed"},
        {head + "</html>", "there are 0 of <body>; expected 1"},
        {head + "<body></body><body></body></html>", "there are 2 of <body>; expected 1"},
        {"<!DOCTYPE html><html><head></head><body></body></html>", "the page has no title"},
        {head + "<body></body></html>\nx", "the end is no </html>"},
        {head + "<body></body></html><p></p>", "more than one element is outside of all others"},
        {"<svg></svg>", "<svg> has no xmlns"},
        {svg + "</svg>" + svg + "</svg>", "more than one element is outside of all others"},
        {svg + "<style>a > b { content: \"&\" }</style></svg>", "line 1: &\" } is no entity"},  // XML reads styles too
    };
    for (const Broken& broken : pages) {
        INFO(broken.markup);
        const Page page(broken.markup);
        INFO("the first problem: " << (page.problems().empty() ? "none" : page.problems()[0]));
        CHECK(std::find(page.problems().begin(), page.problems().end(), broken.problem) != page.problems().end());
    }
    const Page good(head + "<body><style>a &</style><script>1 < 2 && '</p>'</script></body></html>\n");
    CHECK(good.problems() == Texts{});
    CHECK(good.text() == "t");
    CHECK(Page(svg + "<path d=\"M0 0\"/></svg>\n").problems() == Texts{});
}

TEST_CASE("pages: the reader finds the requests of a page to the network") {
    const std::vector<std::string> asking = {
        "<a href=\"https://a.b\">x</a>",
        "<a href=\"other.html\">x</a>",
        "<script src=\"a.js\"></script>",
        "<style>@import 'a.css';</style>",
        "<style>p { background: url(a.png); }</style>",
        "<p style=\"background: url(a.png)\">x</p>",
        "<script>fetch('a');</script>",
        "<script>x.innerHTML = '<img src=\"a\">';</script>",
        "<script>open('http:a');</script>",
        "<svg xmlns=\"http://www.w3.org/2000/other\"></svg>",
    };
    for (const std::string& markup : asking) {
        INFO(markup);
        CHECK(Page(markup).requests().size() == 1);
    }
    CHECK(Page("<p>http: is no request in text</p><svg xmlns=\"http://www.w3.org/2000/svg\"><g></g></svg>")
              .requests()
              .empty());
    CHECK(Page("<p>x</p><script src=\"a\"></script><a href=\"b\">c</a>").requests() ==
          Texts{"script: src=a", "a: href=b"});
}
