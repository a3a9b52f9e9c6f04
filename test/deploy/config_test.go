package deploy

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/hamlet-federation/coredns-federation/federation/ownerconfig"
)

// The owner accepts the configuration that each example gives it.
func TestOwnerConfig(t *testing.T) {
	helm := helm(t, "")
	texts := make(map[string]string)
	for example := range examples(t) {
		for _, o := range ofKind(objects(t, helm.template(t, example)), "ConfigMap") {
			if text, ok := at(o, "data", "owner.yaml").(string); ok {
				texts[example] = text
			}
		}
	}
	if len(texts) < 3 {
		t.Errorf("only %d examples have an owner", len(texts))
	}
	overlay, err := os.ReadFile(filepath.Join(manifests, "overlays", "owner", "owner.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	texts["overlay"] = string(overlay)
	for name, text := range texts {
		if _, wrong := ownerconfig.Parse([]byte(text)); len(wrong) > 0 {
			t.Errorf("%s: %v, in\n%s", name, wrong, text)
		}
	}
}
