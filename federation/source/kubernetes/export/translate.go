package export

// Translate says what becomes of an exported Service.
func (r Rules) Translate(in Input) Verdict {
	return Verdict{Refusal: &Finding{Rule: NoService, Message: "not yet"}}
}
