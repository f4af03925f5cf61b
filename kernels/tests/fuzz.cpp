// Random inputs for every exported function, for the sanitizers.
//
//     fuzz SUBJECT SEED COUNT     exit status 1 where a result is wrong
//
// Subjects: whisper, decoders, encoders, choices, alignments, arguments.
#include "inputs.h"

int main(int count, char **arguments) {
    if (count != 4) return 2;
    const std::string subject = arguments[1];
    fuzz::bits.seed((unsigned)atoi(arguments[2]));
    const int cases = atoi(arguments[3]);
    if (subject == "whisper") return fuzz::whisper(cases);
    if (subject == "decoders") return fuzz::decoders(cases);
    if (subject == "encoders") return fuzz::encoders(cases);
    if (subject == "choices") return fuzz::choices(cases);
    if (subject == "alignments") return fuzz::alignments(cases);
    if (subject == "arguments") return fuzz::arguments();
    return 2;
}
