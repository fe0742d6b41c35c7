// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cctype>
#include <cstddef>
#include <map>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

// Reads the HTML and SVG of this project's pages, so that tests ask for data instead of markup. It is no general
// parser: constructs that the pages do not use are problems, and so are faults that browsers repair silently.
namespace unitscale::test {

/// An element and its content.
struct PageElement {
    std::string name{};
    std::map<std::string, std::string> attributes{};  ///< decoded
    std::string text{};      ///< with inner elements except style and script; decoded, white space as one blank
    std::size_t parent = 0;  ///< the place of its parent in Page::elements()

    /// The value of an attribute; "" if the element lacks it.
    [[nodiscard]] std::string attribute(const std::string& key) const {
        const auto found = attributes.find(key);
        return found == attributes.end() ? "" : found->second;
    }
    /// True if the attribute `class` names this class. Every element has the class "".
    [[nodiscard]] bool has_class(std::string_view wanted) const {
        return (' ' + attribute("class") + ' ').find(' ' + std::string(wanted) + (wanted.empty() ? "" : " ")) !=
               std::string::npos;
    }
};

using PageElements = std::vector<const PageElement*>;
using Texts = std::vector<std::string>;

/// A page, a picture (its first element is svg) or a part of a page. Test: tests/report/report_page_test.cpp
class Page {
public:
    explicit Page(std::string markup) : markup_(std::move(markup)) {
        read();
        check_names();
        check_whole();
    }
    Page(const Page&) = delete;
    Page& operator=(const Page&) = delete;

    /// The faults of the page, with line numbers.
    [[nodiscard]] const Texts& problems() const noexcept { return problems_; }

    /// The elements in order. The first entry is no element: it holds the others.
    [[nodiscard]] const std::vector<PageElement>& elements() const noexcept { return elements_; }

    /// The whole text, without style and script.
    [[nodiscard]] const std::string& text() const noexcept { return elements_[0].text; }

    /// True if the page contains the text.
    [[nodiscard]] bool says(std::string_view words) const { return text().find(words) != std::string::npos; }

    /// The elements of this name and class, inside `outer` if it is given.
    [[nodiscard]] PageElements all(std::string_view name, std::string_view its_class = "",
                                   const PageElement* outer = nullptr) const {
        PageElements found;
        for (std::size_t i = 1; i < elements_.size(); ++i)
            if (elements_[i].name == name && elements_[i].has_class(its_class) &&
                (outer == nullptr || is_inside(i, *outer)))
                found.push_back(&elements_[i]);
        return found;
    }
    [[nodiscard]] std::size_t count(std::string_view name, std::string_view its_class = "") const {
        return all(name, its_class).size();
    }
    /// The texts of these elements.
    [[nodiscard]] Texts texts(std::string_view name, std::string_view its_class = "",
                              const PageElement* outer = nullptr) const {
        Texts found;
        for (const PageElement* element : all(name, its_class, outer)) found.push_back(element->text);
        return found;
    }
    /// The element around an element.
    [[nodiscard]] const PageElement& parent(const PageElement& element) const { return elements_[element.parent]; }

    /// The texts of a table's cells, by row.
    [[nodiscard]] std::vector<Texts> rows(const PageElement& table) const {
        std::vector<Texts> found;
        for (const PageElement* row : all("tr", "", &table)) {
            found.emplace_back();
            for (const PageElement& cell : elements_)
                if ((cell.name == "td" || cell.name == "th") && &elements_[cell.parent] == row)
                    found.back().push_back(cell.text);
        }
        return found;
    }

    /// The targets of links. A link into the page without a target is a problem.
    [[nodiscard]] Texts links() const {
        Texts found;
        for (const PageElement& element : elements_)
            for (const char* key : {"href", "xlink:href"})
                if (element.attributes.contains(key)) found.push_back(element.attribute(key));
        return found;
    }

    /// The requests of the page to the network, including links out of the page. No page of this project has any.
    [[nodiscard]] Texts requests() const {
        Texts found;
        const auto search = [&](const std::string& text, std::string_view place) {
            for (const char* word : {"http:", "https:", "url(", "@import", "src=", "import(", "fetch(",
                                     "XMLHttpRequest", "WebSocket", "EventSource", "sendBeacon"})
                for (std::size_t at = text.find(word); at != std::string::npos; at = text.find(word, at + 1))
                    if (text.compare(at, 5, "url(#") != 0)
                        found.push_back(std::string(place) + ": " + text.substr(at, 40));
        };
        for (const PageElement& element : elements_) {
            if (listed(raw_names, element.name)) search(element.text, element.name);
            for (const auto& [key, value] : element.attributes) {
                bool asks = listed("src srcset href xlink:href action formaction poster data ping background", key);
                if (asks && !value.starts_with('#')) found.push_back(element.name + ": " + key + "=" + value);
                else if (key != "xmlns" || value != svg_name_space) search(value, element.name);
            }
        }
        return found;
    }

private:
    static constexpr std::string_view svg_name_space = "http://www.w3.org/2000/svg";

    /// True if `word` is one of the words of a list.
    [[nodiscard]] static bool listed(std::string_view list, std::string_view word) {
        for (std::size_t at = list.find(word); !word.empty() && at != std::string_view::npos;
             at = list.find(word, at + 1)) {
            const std::size_t end = at + word.size();
            if ((at == 0 || list[at - 1] == ' ') && (end == list.size() || list[end] == ' ')) return true;
        }
        return false;
    }
    [[nodiscard]] static bool is_space(char c) { return c == ' ' || c == '\n' || c == '\t' || c == '\r'; }
    [[nodiscard]] static bool is_name(char c) {
        return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '-' || c == '_' || c == ':' || c == '.';
    }

    [[nodiscard]] bool is_inside(std::size_t place, const PageElement& outer) const {
        while (place != 0) {
            place = elements_[place].parent;
            if (&elements_[place] == &outer) return true;
        }
        return false;
    }

    template <class... Parts>
    void problem(const Parts&... parts) {
        std::string text;
        if (token_ < markup_.size()) {
            const auto end = markup_.begin() + static_cast<std::ptrdiff_t>(token_);
            text = "line " + std::to_string(1 + std::count(markup_.begin(), end, '\n')) + ": ";
        }
        ((text += parts), ...);
        problems_.push_back(std::move(text));
    }

    [[nodiscard]] bool at(std::string_view text) const {
        return std::string_view(markup_).substr(at_).starts_with(text);
    }
    [[nodiscard]] char now() const { return at_ < markup_.size() ? markup_[at_] : '\0'; }
    [[nodiscard]] std::string take_name() {
        const std::size_t begin = at_;
        while (is_name(now())) ++at_;
        return markup_.substr(begin, at_ - begin);
    }
    void skip_space() {
        while (is_space(now())) ++at_;
    }

    void read() {
        elements_.push_back({});
        open_ = {0};
        skip_space();
        is_picture_ = at("<svg");
        is_page_ = at("<!DOCTYPE html>");
        if (is_page_) at_ += 15;
        for (token_ = at_; at_ < markup_.size(); token_ = at_) {
            if (at("</")) {
                close();
            } else if (now() == '<' && at_ + 1 < markup_.size() && is_name(markup_[at_ + 1])) {
                open();
            } else {
                if (now() == '<') problem("< stands in text");
                const std::size_t end = markup_.find('<', at_ + 1);
                add_text(decoded(markup_.substr(at_, end - at_)));
                at_ = std::min(end, markup_.size());
            }
        }
        while (open_.size() > 1) {
            problem('<', elements_[open_.back()].name, "> is not closed");
            open_.pop_back();
        }
        for (PageElement& element : elements_)
            if (!listed(raw_names, element.name) && element.text.ends_with(' ')) element.text.pop_back();
    }

    /// Adds text to the open elements. White space becomes one blank, and none at the beginning.
    void add_text(const std::string& text) {
        const bool blank = std::all_of(text.begin(), text.end(), is_space);
        if (!blank && listed(strict_names, elements_[open_.back()].name))
            problem("text stands in <", elements_[open_.back()].name, ">: ", text);
        for (const std::size_t place : open_)
            for (const char c : text) {
                std::string& all = elements_[place].text;
                if (!is_space(c)) all += c;
                else if (!all.empty() && all.back() != ' ') all += ' ';
            }
    }

    /// Text without entities.
    [[nodiscard]] std::string decoded(std::string text) {
        static const std::map<std::string, char> known = {
            {"lt", '<'}, {"gt", '>'}, {"amp", '&'}, {"quot", '"'}, {"apos", '\''}};
        for (std::size_t i = text.find('&'); i != std::string::npos; i = text.find('&', i + 1)) {
            const std::size_t end = text.find(';', i);
            const auto entity = known.find(end == std::string::npos ? "" : text.substr(i + 1, end - i - 1));
            if (entity == known.end()) problem(text.substr(i, 10), " is no entity");
            else text.replace(i, end + 1 - i, 1, entity->second);
        }
        return text;
    }

    void close() {
        at_ += 2;
        const std::string name = take_name();
        skip_space();
        if (now() == '>') ++at_;
        else problem("</", name, " has no >");
        const auto found =
            std::find_if(open_.rbegin(), open_.rend(), [&](std::size_t i) { return elements_[i].name == name; });
        if (name.empty() || found == open_.rend()) return problem("</", name, "> closes nothing");
        for (; elements_[open_.back()].name != name; open_.pop_back())
            problem("</", name, "> stands where <", elements_[open_.back()].name, "> is open");
        open_.pop_back();
        if (!listed(inline_names, name)) add_text(" ");
    }

    void open() {
        ++at_;
        PageElement element{.name = take_name(), .parent = open_.back()};
        const std::string name = element.name;
        read_attributes(element);
        const std::string& holder = elements_[open_.back()].name;
        const bool drawn = name == "svg" || std::any_of(open_.begin(), open_.end(),
                                                        [&](std::size_t i) { return elements_[i].name == "svg"; });
        check_place(name, holder, drawn);
        if (!listed(inline_names, name)) add_text(" ");
        const bool ended = at("/>");
        at_ = std::min(at_ + (ended ? 2 : 1), markup_.size());
        elements_.push_back(std::move(element));
        const bool is_void = !drawn && listed(void_names, name);
        if (ended && !drawn && !is_void) problem('<', name, "/> is not empty in HTML");
        if (ended || is_void) return;
        open_.push_back(elements_.size() - 1);
        if (is_picture_ || !listed(raw_names, name)) return;
        const std::size_t end = std::min(markup_.find("</" + name, at_), markup_.size());
        elements_.back().text = markup_.substr(at_, end - at_);
        at_ = end;
    }

    /// Reads from the end of the name up to > or />.
    void read_attributes(PageElement& element) {
        while (true) {
            const bool apart = is_space(now());
            skip_space();
            if (now() == '>' || at("/>")) return;
            const std::string key = take_name();
            const bool has_value = now() == '=';
            if (has_value) ++at_;
            const char quote = now();
            if (key.empty() || (has_value && quote != '"' && quote != '\'')) {
                problem(key.empty() ? "what is no attribute" : key, " of <", element.name, "> is not quoted");
                at_ = std::min(markup_.find('>', at_), markup_.size());
                return;
            }
            if (!apart) problem(key, " of <", element.name, "> has no blank before it");
            std::string value;
            if (has_value) {
                const std::size_t end = std::min(markup_.find(quote, at_ + 1), markup_.size());
                value = markup_.substr(at_ + 1, end - at_ - 1);
                if (value.find('<') != std::string::npos) problem(key, " of <", element.name, "> holds <");
                value = decoded(value);
                at_ = std::min(end + 1, markup_.size());
            } else if (is_picture_ ||
                       !(key.starts_with("data-") || listed("checked open selected disabled hidden", key))) {
                problem(key, " of <", element.name, "> has no value");
            }
            if (listed("d x y cx cy r x1 x2 y1 y2 dx dy width height viewBox transform", key))
                for (const char* word : {"nan", "inf"})
                    if (value.find(word) != std::string::npos)
                        problem(key, " of <", element.name, "> is not finite: ", value);
            if (!element.attributes.emplace(key, value).second) problem('<', element.name, "> has ", key, " twice");
        }
    }

    void check_place(const std::string& name, const std::string& holder, bool drawn) {
        if (!listed(drawn ? svg_names : html_names, name))
            problem('<', name, "> is unknown", drawn ? " in a picture" : "");
        if (drawn) return;
        const bool must =
            listed("tr td th caption li option summary head body meta title", name) || listed(strict_names, holder);
        if (must && !listed(places, name + ':' + holder)) problem('<', name, "> stands in <", holder, '>');
        if (holder == "p" && !listed(inline_names, name)) problem('<', name, "> stands in <p>");
    }

    /// Checks that ids are unique, and that every id that is referred to exists.
    void check_names() {
        std::map<std::string, int> names;  // how many elements have the id
        for (const PageElement& element : elements_)
            if (element.attributes.contains("id") && ++names[element.attribute("id")] == 2)
                problem("two elements have the id ", element.attribute("id"));
        const auto need = [&](const std::string& id, const std::string& key) {
            if (!names.contains(id)) problem(key, " refers to ", id, ", which is not there");
        };
        for (const PageElement& element : elements_)
            for (const auto& [key, value] : element.attributes) {
                if (key == "for" || key == "aria-labelledby" || key == "aria-describedby") need(value, key);
                if ((key == "href" || key == "xlink:href") && value.starts_with('#')) need(value.substr(1), key);
                if (const std::size_t use = value.find("url(#"); use != std::string::npos)
                    need(value.substr(use + 5, value.find(')', use) - use - 5), key);
            }
    }

    /// Checks the parts that only whole pages and pictures have.
    void check_whole() {
        if (!is_page_ && !is_picture_) return;
        for (const char* name : {"html", "head", "body"})
            if (is_page_ && count(name) != 1)
                problem("there are ", std::to_string(count(name)), " of <", name, ">; expected 1");
        if (is_page_ && (count("head") == 0 || all("title", "", all("head")[0]).size() != 1))
            problem("the page has no title");
        if (is_picture_ && elements_[1].attribute("xmlns") != svg_name_space) problem("<svg> has no xmlns");
        const auto is_outside = [](const PageElement& element) { return element.parent == 0; };
        if (std::count_if(elements_.begin() + 1, elements_.end(), is_outside) != 1)
            problem("more than one element is outside of all others");
        const std::string end = is_page_ ? "</html>" : "</svg>";
        const std::size_t last = markup_.find_last_not_of(" \n");
        if (last + 1 < end.size() || markup_.compare(last + 1 - end.size(), end.size(), end) != 0)
            problem("the end is no ", end);
    }

    static constexpr std::string_view raw_names = "style script";
    static constexpr std::string_view void_names = "meta input br";
    static constexpr std::string_view inline_names = "a b i span sup sub tspan";  // these do not end a word
    static constexpr std::string_view svg_names = "svg g path rect circle line text tspan title desc style";
    static constexpr std::string_view html_names =
        "html head meta title style body header main div p span a b i sup sub br h1 h2 h3 table caption tr td th "
        "ul li details summary label input select option button noscript script";
    static constexpr std::string_view strict_names = "html head table tr ul select";  // hold only what `places` names
    static constexpr std::string_view places =
        "head:html body:html meta:head title:head style:head script:head caption:table tr:table td:tr th:tr li:ul "
        "option:select summary:details";

    std::string markup_{};
    std::size_t at_ = 0, token_ = 0;  ///< the reader's position, and the start of the current tag or text
    bool is_page_ = false, is_picture_ = false;
    std::vector<PageElement> elements_{};
    std::vector<std::size_t> open_{};  ///< places, from the outermost
    Texts problems_{};
};

struct PagePoint {
    double x = 0.0, y = 0.0;
};

/// The unbroken lines that a path draws, from the moves and lines in its attribute `d`. A closed line repeats its first
/// point at its end. The result is empty if the path has other parts.
[[nodiscard]] inline std::vector<std::vector<PagePoint>> lines_of(const PageElement& path) {
    std::vector<std::vector<PagePoint>> lines;
    std::istringstream d(path.attribute("d"));
    for (char pen = '\0'; d >> pen;) {
        PagePoint point;
        const bool closes = pen == 'Z' && !lines.empty();
        if (closes) point = lines.back().front();
        else if (!(d >> point.x >> point.y) || (pen != 'M' && (pen != 'L' || lines.empty()))) return {};
        if (pen == 'M') lines.emplace_back();
        lines.back().push_back(point);
    }
    return lines;
}

/// The lines of the curves in the chart with this label, by the curves' names; empty if there is no such chart.
[[nodiscard]] inline std::map<std::string, std::vector<std::vector<PagePoint>>> curves_of(const Page& page,
                                                                                          std::string_view label) {
    std::map<std::string, std::vector<std::vector<PagePoint>>> curves;
    for (const PageElement* chart : page.all("svg", "chart"))
        for (const PageElement* title : page.all("title", "", chart))
            for (const PageElement* path : page.all("path", "curve", &page.parent(*title)))
                if (chart->attribute("aria-label") == label) curves[title->text] = lines_of(*path);
    return curves;
}

}  // namespace unitscale::test
