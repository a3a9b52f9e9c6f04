package federation

// The rules that the tests of this package expect.
var (
	ErrAddressZone    = errAddressZone
	ErrAddressForm    = errAddressForm
	ErrNameEmpty      = errNameEmpty
	ErrNameTooLong    = errNameTooLong
	ErrLabelEmpty     = errLabelEmpty
	ErrLabelTooLong   = errLabelTooLong
	ErrLabelCharacter = errLabelCharacter
	ErrLabelHyphen    = errLabelHyphen
	ErrLabelReserved  = errLabelReserved
	ErrNameNumeric    = errNameNumeric
	ErrNameIDNA       = errNameIDNA
	ErrLabelAddr      = errLabelAddr
)
