// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/base/error.hpp>
#include <unitscale/base/random.hpp>
#include <unitscale/io/question.hpp>
#include <unitscale/io/sentences.hpp>
#include <unitscale/io/text.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

// Questions that are made from a text by rules, for trials of span prediction without a marked data set.
namespace unitscale::io {

struct ClozeOptions {
    std::uint64_t seed = 1;
    double validation_share = 0.1;                 ///< of the text's bytes, at its end
    std::size_t passage_words = 60;                ///< a passage ends with the sentence that reaches them
    std::size_t least_words = 6, most_words = 40;  ///< of a sentence that is asked about
    std::size_t name_words = 4;                    ///< the most words of a name that is asked for
    double left_out = 0.2;                         ///< share of the question's other words that are left out
    std::string name_blank = "what", number_blank = "which number";  ///< stand in the answer's place
};

/// Two sets of questions that share no passage.
struct ClozeQuestions {
    std::vector<Question> training{}, validation{};
};

/// A word of a sentence without the punctuation around it, as bytes of the sentence.
struct ClozeWord {
    TextRange whole{}, bare{};  ///< with and without the punctuation
};

/// The words of a sentence between white space of ASCII. Bytes beyond ASCII are letters; words of punctuation alone
/// have an empty `bare`.
[[nodiscard]] inline std::vector<ClozeWord> cloze_words(std::string_view sentence) {
    constexpr std::string_view space = " \t\r\n\v\f";
    const auto is_letter = [](char c) {
        return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c & 0x80) != 0;
    };
    std::vector<ClozeWord> words;
    for (std::size_t at = sentence.find_first_not_of(space); at < sentence.size();) {
        const std::size_t end = std::min(sentence.find_first_of(space, at), sentence.size());
        std::size_t first = at, last = end;
        while (first < last && !is_letter(sentence[first])) ++first;
        while (last > first && !is_letter(sentence[last - 1])) --last;
        words.push_back({{at, end}, {first, last}});
        at = sentence.find_first_not_of(space, end);
    }
    return words;
}

/// Parts of a sentence that can be asked for: words `first` to before `last`.
struct ClozeAnswer {
    std::size_t first = 0, last = 0;
    bool is_number = false;

    friend bool operator==(const ClozeAnswer&, const ClozeAnswer&) = default;
};

/// The names and numbers of a sentence, in its order.
/// - A number is a word of digits, with commas and points inside allowed.
/// - A name is a run of words that begin with a capital letter of ASCII. Punctuation at a word's start or end bounds
///   the run. A run with the sentence's first word is left out, since any word has a capital there; so are runs of
///   more than `name_words` words. The words I, A, An and The are no part of a name.
/// - Text that occurs twice in the sentence is left out.
[[nodiscard]] inline std::vector<ClozeAnswer> cloze_answers(std::string_view sentence,
                                                            const std::vector<ClozeWord>& words,
                                                            std::size_t name_words = 4) {
    const auto bare = [&](std::size_t i) {
        return sentence.substr(words[i].bare.begin, words[i].bare.end - words[i].bare.begin);
    };
    const auto is_name = [&](std::size_t i) {
        const std::string_view word = bare(i);
        const bool counts = word != "I" && word != "A" && word != "An" && word != "The";
        return counts && !word.empty() && word[0] >= 'A' && word[0] <= 'Z';
    };
    const auto is_number = [&](std::size_t i) {
        return !bare(i).empty() && bare(i).find_first_not_of("0123456789.,") == std::string_view::npos;
    };
    std::vector<ClozeAnswer> found;
    for (std::size_t i = 0; i < words.size();) {
        std::size_t last = i + 1;
        if (is_name(i))
            while (last < words.size() && is_name(last) && words[last - 1].whole.end == words[last - 1].bare.end &&
                   words[last].whole.begin == words[last].bare.begin)
                ++last;
        if (is_number(i)) found.push_back({i, last, true});
        else if (is_name(i) && i > 0 && last - i <= name_words) found.push_back({i, last, false});
        i = last;
    }
    std::erase_if(found, [&](const ClozeAnswer& answer) {
        const std::size_t count = answer.last - answer.first;
        std::size_t places = 0;
        for (std::size_t i = 0; i + count <= words.size(); ++i) {
            bool equal = true;
            for (std::size_t j = 0; equal && j < count; ++j) equal = bare(i + j) == bare(answer.first + j);
            places += equal ? 1 : 0;
        }
        return places > 1;
    });
    return found;
}

/// A question about a sentence: its words, with a blank in the answer's place, and a question mark at its end. Each
/// word is left out with probability `left_out`, by a random word of its own.
[[nodiscard]] inline std::string cloze_text(std::string_view sentence, const std::vector<ClozeWord>& words,
                                            const ClozeAnswer& answer, const ClozeOptions& options, RandomKey stream) {
    std::string text;
    const auto append = [&](std::string_view part) { (text += text.empty() ? "" : " ") += part; };
    for (std::size_t i = 0; i < words.size(); ++i) {
        if (i == answer.first) {
            append(answer.is_number ? options.number_blank : options.name_blank);
            const std::size_t behind = words[answer.last - 1].bare.end;
            text += sentence.substr(behind, words[answer.last - 1].whole.end - behind);
        }
        if (i >= answer.first && i < answer.last) continue;
        if (static_cast<double>(uniform(random_word(stream, 1 + i))) < options.left_out) continue;
        append(sentence.substr(words[i].whole.begin, words[i].whole.end - words[i].whole.begin));
    }
    const std::size_t end = text.find_last_not_of(".!? ");
    return text.substr(0, end == std::string::npos ? 0 : end + 1) + "?";
}

/// Questions about names and numbers of a text in UTF-8, by these rules:
///   1. A line is a document. A line break in the text's last tenth bounds training and validation.
///   2. A passage is some sentences (`split_sentences`) of one document, up to `passage_words` words. A passage of one
///      sentence is left out. So is a passage whose text has come before.
///   3. Each sentence of a passage with names or numbers (`cloze_answers`) gives one question: one of them, drawn, is
///      replaced by `what` or `which number`, and every other word is left out with probability 0.2 (`cloze_text`).
///   4. The context is the passage, and the answer stands in the sentence that the question was made from.
/// So the question is a part of the context. A model can find the answer by comparing words; it need not understand
/// them. The task shows that a model aligns question and context. It says little about reading.
/// Equal texts and options give equal questions. Ids are train-0, train-1, ... and dev-0, dev-1, ...
/// Errors: shares outside [0,1], or a validation share of 0 or 1; no passages; a text that gives no training or no
/// validation questions. Test: tests/io/cloze_questions_test.cpp
[[nodiscard]] inline ClozeQuestions cloze_questions(std::string_view text, const ClozeOptions& options = {}) {
    check(options.validation_share > 0.0 && options.validation_share < 1.0, "cloze questions: validation_share is ",
          options.validation_share, "; expected a number between 0 and 1");
    check(options.left_out >= 0.0 && options.left_out <= 1.0, "cloze questions: left_out is ", options.left_out,
          "; expected a number in [0,1]");
    static_cast<void>(decode_utf8(text));  // here, so that an error names the offset in the text
    const auto share = static_cast<std::size_t>(static_cast<double>(text.size()) * (1.0 - options.validation_share));
    const std::size_t border = std::min(text.find('\n', share), text.size());
    ClozeQuestions questions;
    std::set<std::string_view> passages;
    std::size_t documents = 0;
    const auto ask = [&](std::string_view passage, const std::vector<std::string_view>& sentences, bool training) {
        if (sentences.size() < 2 || !passages.insert(passage).second) return;
        for (const std::string_view sentence : sentences) {
            const std::vector<ClozeWord> words = cloze_words(sentence);
            if (words.size() < options.least_words || words.size() > options.most_words) continue;
            const std::vector<ClozeAnswer> answers = cloze_answers(sentence, words, options.name_words);
            if (answers.empty()) continue;
            const auto place = static_cast<std::size_t>(sentence.data() - text.data());
            const RandomKey stream{options.seed, mix(hash_name("cloze questions"), place)};
            const ClozeAnswer& answer = answers[random_word(stream, 0) % answers.size()];
            const TextRange range{words[answer.first].bare.begin, words[answer.last - 1].bare.end};
            std::vector<Question>& set = training ? questions.training : questions.validation;
            set.push_back({.id = concatenate(training ? "train-" : "dev-", set.size()),
                           .title = concatenate("line ", documents),
                           .context = std::string(passage),
                           .question = cloze_text(sentence, words, answer, options, stream),
                           .answers = {{std::string(sentence.substr(range.begin, range.end - range.begin)),
                                        static_cast<std::size_t>(sentence.data() - passage.data()) + range.begin}}});
        }
    };
    for (std::size_t begin = 0; begin < text.size();) {
        const std::size_t end = std::min(text.find('\n', begin), text.size());
        ++documents;
        std::vector<std::string_view> sentences;
        std::size_t count = 0;
        for (const std::string_view sentence : split_sentences(text.substr(begin, end - begin))) {
            sentences.push_back(sentence);
            count += cloze_words(sentence).size();
            if (count < options.passage_words) continue;
            const char* const first = sentences.front().data();
            ask({first, static_cast<std::size_t>(sentence.data() + sentence.size() - first)}, sentences,
                begin < border);
            sentences.clear();
            count = 0;
        }
        if (!sentences.empty()) {
            const char* const first = sentences.front().data();
            ask({first, static_cast<std::size_t>(sentences.back().data() + sentences.back().size() - first)}, sentences,
                begin < border);
        }
        begin = end + 1;
    }
    check(!questions.training.empty() && !questions.validation.empty(), "cloze questions: ", questions.training.size(),
          " for training and ", questions.validation.size(),
          " for validation; expected a text with names or numbers in its lines of two sentences and more, at its start "
          "and in the last ",
          100.0 * options.validation_share, " %");
    return questions;
}

}  // namespace unitscale::io
