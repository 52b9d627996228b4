"""The grammar of the artificial corpus: gold pairs, declension, rare words."""

import pytest
from support.clauses import clause, noun, nouns, pronoun, spell_out

from artificial import inflection, lexicon

# fmt: off
GOLD = [
    # past agrees in gender and number, also across an attractor
    (clause(nouns("boy"), "sleep"), "the boys slept .", "мальчики спали ."),
    (clause(noun("letter", "a", "new"), "burn", time="yesterday"),
     "yesterday a new letter burned .", "вчера горело новое письмо ."),
    (clause(noun("woman", pp=("with", nouns("cat", ""))), "laugh"),
     "the woman with cats laughed .", "женщина с кошками смеялась ."),
    # present agrees in person and number
    (clause(pronoun("i"), "love", pronoun("you"), tense="pres"), "i love you .", "я вас люблю ."),
    (clause(pronoun("we"), "help", noun("anna"), tense="pres"), "we help anna .", "мы помогаем анне ."),
    (clause(pronoun("you"), "own", nouns("key"), tense="pres"), "you own the keys .", "вы владеете ключами ."),
    (clause(noun("man"), "see", noun("man", "a", "old"), tense="pres"),
     "the man sees an old man .", "мужчина видит старого мужчину ."),
    # future: the auxiliary agrees
    (clause(nouns("student", "our"), "build", noun("house", "this"), tense="fut", time="tomorrow"),
     "tomorrow our students will build this house .", "завтра наши студенты будут строить этот дом ."),
    # government: accusative, animate or not; genitive; dative; instrumental
    (clause(noun("king"), "find", noun("book", "a", "blue")),
     "the king found a blue book .", "король находил синюю книгу ."),
    (clause(noun("king"), "find", noun("wolf", "a", "big")),
     "the king found a big wolf .", "король находил большого волка ."),
    (clause(noun("king"), "find", noun("table", "a", "big")),
     "the king found a big table .", "король находил большой стол ."),
    (clause(pronoun("they"), "see", nouns("girl", "this", "good")),
     "they saw these good girls .", "они видели этих хороших девочек ."),
    (clause(noun("mouse"), "fear", noun("cat", "every"), tense="pres"),
     "the mouse fears every cat .", "мышь боится каждой кошки ."),
    (clause(noun("queen"), "admire", noun("artist", "her"), tense="pres"),
     "the queen admires her artist .", "королева восхищается её художником ."),
    (clause(noun("doctor"), "answer", noun("father", "my")),
     "the doctor answered my father .", "врач отвечал моему отцу ."),
    # prepositions and their case
    (clause(pronoun("he"), "think", pps=(("about", noun("window", "this")),), tense="pres"),
     "he thinks about this window .", "он думает об этом окне ."),
    (clause(pronoun("she"), "play", pps=(("with", noun("student", "the", "strange")),)),
     "she played with the strange student .", "она играла со странным студентом ."),
    (clause(noun("ivan"), "come", pps=(("to", noun("library")),)),
     "ivan came to the library .", "иван приходил к библиотеке ."),
    (clause(noun("olga"), "work", pps=(("in", noun("building", "a", "ancient")),), tense="pres"),
     "olga works in an ancient building .", "ольга работает в древнем здании ."),
    (clause(noun("house", pp=("without", nouns("window", ""))), "stand", pps=(("near", noun("museum")),)),
     "the house without windows stood near the museum .", "дом без окон стоял около музея ."),
    # order: possessor, adverbs, object pronouns, recipients
    (clause(noun("girl"), "see", noun("book", "", "new", owner=noun("teacher"))),
     "the girl saw the teacher 's new book .", "девочка видела новую книгу учителя ."),
    (clause(noun("dog", "", owner=nouns("neighbour")), "sleep", tense="pres", frequency="often"),
     "the neighbours ' dog often sleeps .", "собака соседок часто спит ."),
    (clause(noun("boy"), "hear", pronoun("they"), manner="well", negated=True, tense="pres"),
     "the boy does not hear them well .", "мальчик их хорошо не слышит ."),
    (clause(noun("poet"), "give", nouns("letter", ""), to=noun("princess", "the", "young")),
     "the poet gave letters to the young princess .", "поэт давал молодой принцессе письма ."),
    (clause(noun("poet"), "give", nouns("letter", ""), to=noun("princess", "the", "young"), shift=True),
     "the poet gave the young princess letters .", "поэт давал молодой принцессе письма ."),
    (clause(pronoun("we"), "show", noun("map", "a"), to=pronoun("he"), tense="fut"),
     "we will show a map to him .", "мы ему будем показывать карту ."),
    (clause(noun("witch"), "help", pronoun("i"), frequency="never"),
     "the witch never helped me .", "ведьма никогда мне не помогала ."),
    # the subject in the dative, where the verb agrees with the object
    (clause(noun("girl"), "like", noun("book")), "the girl liked the book .", "девочке нравилась книга ."),
    (clause(noun("cat", "my"), "like", pronoun("we"), tense="pres"), "my cat likes us .", "моей кошке мы нравимся ."),
    (clause(noun("king"), "like", nouns("cat", "my"), tense="fut"),
     "the king will like my cats .", "королю будут нравиться мои кошки ."),
    (clause(noun("king"), "recall", noun("letter", "which"), question=True),
     "which letter did the king recall ?", "какое письмо вспоминалось королю ?"),
    (clause(noun("teacher", rel=clause(None, "like", noun("girl"))), "sleep", tense="pres"),
     "the teacher who liked the girl sleeps .", "учитель , которому нравилась девочка , спит ."),
    # the verb precedes the subject after a time, but not a pronoun, and not with an object that is a noun
    (clause(noun("girl"), "help", pronoun("we"), time="now", tense="pres", frequency="often"),
     "now the girl often helps us .", "сейчас часто нам помогает девочка ."),
    (clause(pronoun("she"), "like", noun("house"), time="yesterday"),
     "yesterday she liked the house .", "вчера ей нравился дом ."),
    (clause(noun("cow"), "sleep", link=("because", clause(noun("king"), "work", tense="fut", time="tomorrow"))),
     "the cow slept because tomorrow the king will work .", "корова спала , потому что завтра будет работать король ."),
    (clause(noun("king"), "like", pronoun("he"), time="yesterday", frequency="often"),
     "yesterday the king often liked him .", "вчера он часто нравился королю ."),
    (clause(pronoun("she"), "like", pronoun("i"), tense="pres", frequency="never"),
     "she never likes me .", "ей я никогда не нравлюсь ."),
    (clause(pronoun("we"), "like", pronoun("i"), tense="pres", question=True),
     "do we like me ?", "нравлюсь ли я нам ?"),
    (clause(nouns("doctor"), "like", pronoun("i"), tense="fut", question=True),
     "will the doctors like me ?", "буду ли я нравиться врачам ?"),
    # several adjectives
    (clause(noun("king"), "see", nouns("cat", "my", "old", "black", "strange")),
     "the king saw my old black strange cats .", "король видел моих старых чёрных странных кошек ."),
    # questions: the verb precedes the subject, and follows the object that is asked for
    (clause(noun("girl"), "see", noun("book"), question=True),
     "did the girl see the book ?", "видела ли девочка книгу ?"),
    (clause(nouns("student", "our"), "build", noun("house", "this"), tense="fut", question=True),
     "will our students build this house ?", "будут ли наши студенты строить этот дом ?"),
    (clause(pronoun("she"), "help", pronoun("they"), tense="pres", question=True),
     "does she help them ?", "помогает ли она им ?"),
    (clause(noun("teacher"), "hear", pronoun("we"), question=True, tense="fut"),
     "will the teacher hear us ?", "будет ли учитель нас слышать ?"),
    (clause(noun("poet"), "give", noun("letter", "which"), to=pronoun("he"), shift=True, question=True),
     "which letter did the poet give him ?", "какое письмо давал ему поэт ?"),
    (clause(pronoun("i"), "give", noun("letter", "which"), to=pronoun("he"), shift=True, question=True),
     "which letter did i give him ?", "какое письмо я ему давал ?"),
    (clause(noun("teacher", rel=clause(None, "see", noun("girl"))), "sleep", question=True),
     "did the teacher who saw the girl sleep ?", "спал ли учитель , который видел девочку ?"),
    (clause(noun("king"), "see", noun("book", "which", "old"), question=True),
     "which old book did the king see ?", "какую старую книгу видел король ?"),
    (clause(noun("poet"), "give", nouns("letter", "which"), to=noun("princess"), tense="pres", question=True),
     "which letters does the poet give to the princess ?", "какие письма даёт поэт принцессе ?"),
    (clause(pronoun("he"), "admire", noun("table", "which"), question=True, pps=(("in", noun("theatre", "a")),)),
     "which table did he admire in a theatre ?", "каким столом он восхищался в театре ?"),
    # coordination
    (clause(noun("cat", conj=noun("dog")), "see", noun("vera", conj=noun("oleg")), tense="pres"),
     "the cat and the dog see vera and oleg .", "кошка и собака видят веру и олега ."),
    (clause(noun("knight"), "see", noun("dragon", "a"), link=("and", clause(None, "help", pronoun("we")))),
     "the knight saw a dragon and helped us .", "рыцарь видел дракона и нам помогал ."),
    (clause(noun("cow"), "sleep", link=("but", clause(pronoun("she"), "work"))),
     "the cow slept , but she worked .", "корова спала , но она работала ."),
    # clauses inside: the relative pronoun takes gender and number from its noun, case from its own verb
    (clause(noun("teacher", rel=clause(None, "see", noun("girl"))), "sleep", tense="pres"),
     "the teacher who saw the girl sleeps .", "учитель , который видел девочку , спит ."),
    (clause(pronoun("i"), "buy", noun("book", rel=clause(pronoun("she"), "lose"))),
     "i bought the book that she lost .", "я покупал книгу , которую она теряла ."),
    (clause(nouns("boy", rel=clause(noun("anna"), "help", tense="pres")), "fear", noun("monster")),
     "the boys who anna helps feared the monster .", "мальчики , которым анна помогает , боялись чудовища ."),
    (clause(noun("singer"), "say", that=clause(noun("castle"), "disappear"), tense="pres"),
     "the singer says that the castle disappeared .", "певица говорит , что замок исчезал ."),
]
# fmt: on


@pytest.mark.parametrize(("sentence", "english", "russian"), GOLD, ids=[english for _, english, _ in GOLD])
def test_every_clause_has_its_english_and_russian_sentence(sentence, english, russian):
    assert spell_out(sentence) == (english, russian)


def test_nouns_are_declined():
    cases = ("nom", "gen", "dat", "acc", "ins", "pre")
    table = {
        ("king", "sg"): "король короля королю короля королем короле",
        ("father", "pl"): "отцы отцов отцам отцов отцами отцах",
        ("door", "sg"): "дверь двери двери дверь дверью двери",
        ("mouse", "pl"): "мыши мышей мышам мышей мышами мышах",
        ("story", "sg"): "история истории истории историю историей истории",
        ("building", "pl"): "здания зданий зданиям здания зданиями зданиях",
        ("bird", "sg"): "птица птицы птице птицу птицей птице",
        ("village", "pl"): "деревни деревень деревням деревни деревнями деревнях",
        ("knife", "pl"): "ножи ножей ножам ножи ножами ножах",
        ("towel", "sg"): "полотенце полотенца полотенцу полотенце полотенцем полотенце",
        ("teacher", "pl"): "учителя учителей учителям учителей учителями учителях",
        ("peter", "sg"): "пётр петра петру петра петром петре",
    }
    for (word, number), forms in table.items():
        assert [inflection.decline(lexicon.NOUNS[word], case, number) for case in cases] == forms.split()


def test_rare_words_are_transliterated_and_declined():
    name = next(word for word in lexicon.RARE if word.en.endswith("ka"))
    assert name.gender == "f" and name.proper
    assert inflection.decline(name, "gen") == name.ru[:-1] + "и"
    place = next(word for word in lexicon.RARE if word.en.endswith("grad"))
    assert place.ru.endswith("град")
    assert inflection.decline(place, "pre") == place.ru + "е"
    assert all(word.ru.translate({ord(c): None for c in "адегиклмнорстувз"}) == "" for word in lexicon.RARE)
