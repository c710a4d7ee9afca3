package wire

// Names are letters, digits, '_' and '-'; topics also have '.', and a group is its app's name or app.subgroup. All are
// 1..NameBytesMax bytes. The broker checks each name that it meets for the first time in a session; the SDK checks before
// it sends.

// CheckTopic returns nil, or a *CodeError with CodeInvalid, when name may not be a topic's.
func CheckTopic(name string) error {
	if name == "." || name == ".." {
		return Errorf(CodeInvalid, "topic %q is not a name", name)
	}
	return checkName("topic", name, true)
}

// CheckApp is CheckTopic for apps.
func CheckApp(name string) error { return checkName("app", name, false) }

// CheckGroup is CheckTopic for consumer groups: an app, or app.subgroup.
func CheckGroup(name string) error {
	if err := checkName("group", name, true); err != nil {
		return err
	}
	dots := 0
	for i := range len(name) {
		if name[i] == '.' {
			dots++
			if i == 0 || i == len(name)-1 || dots > 1 {
				return Errorf(CodeInvalid, "group %q is neither an app nor app.subgroup", name)
			}
		}
	}
	return nil
}

// checkName judges the length and the letters; what names the kind of name in the error.
func checkName(what, name string, dots bool) error {
	if name == "" {
		return Errorf(CodeInvalid, "%s name is empty", what)
	}
	if len(name) > NameBytesMax {
		return Errorf(CodeInvalid, "%s name has %d bytes, at most %d are allowed", what, len(name), NameBytesMax)
	}
	allowed := "letters, digits, '_' and '-'"
	if dots {
		allowed = "letters, digits, '.', '_' and '-'"
	}
	for i := range len(name) {
		switch b := name[i]; {
		case 'a' <= b && b <= 'z', 'A' <= b && b <= 'Z', '0' <= b && b <= '9', b == '_', b == '-':
		case b == '.' && dots:
		default:
			return Errorf(CodeInvalid, "%s name %q has byte %q at %d: %s are allowed", what, name, b, i, allowed)
		}
	}
	return nil
}

// checkToken judges free text of a hello, client id or SDK: printable ASCII without blanks, at most NameBytesMax.
func checkToken(what, s string) error {
	if len(s) > NameBytesMax {
		return Errorf(CodeInvalid, "%s has %d bytes, at most %d are allowed", what, len(s), NameBytesMax)
	}
	for i := range len(s) {
		if s[i] <= ' ' || s[i] > '~' {
			return Errorf(CodeInvalid, "%s has byte %q at %d: printable ASCII without blanks is allowed", what, s[i], i)
		}
	}
	return nil
}
