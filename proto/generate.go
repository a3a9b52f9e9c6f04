//go:build generate

//go:generate go run -tags generate .

// Command proto generates the Go stubs of every .proto file below its working
// directory. It needs only the modules of go.mod: protocompile replaces protoc, which
// Go cannot install, and the plugins are tools of the module.
package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/bufbuild/protocompile"
	"github.com/bufbuild/protocompile/linker"
	"github.com/bufbuild/protocompile/protoutil"
	"google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/pluginpb"
)

func main() {
	log.SetFlags(0)
	if err := generateStubs(context.Background()); err != nil {
		log.Fatalln("generate:", err)
	}
}

func generateStubs(ctx context.Context) error {
	sources, err := protoFiles(".")
	if err != nil {
		return err
	}
	files, err := compileSources(ctx, sources)
	if err != nil {
		return err
	}
	request := &pluginpb.CodeGeneratorRequest{
		FileToGenerate: sources,
		Parameter:      proto.String("paths=source_relative"),
		ProtoFile:      inOrder(files),
	}
	for _, plugin := range []string{"protoc-gen-go", "protoc-gen-go-grpc"} {
		if err := runPlugin(ctx, plugin, request); err != nil {
			return fmt.Errorf("%s: %w", plugin, err)
		}
	}
	return nil
}

// protoFiles returns the .proto files below root in lexical order.
func protoFiles(root string) ([]string, error) {
	var files []string
	err := fs.WalkDir(os.DirFS(root), ".", func(path string, entry fs.DirEntry, err error) error {
		if err == nil && !entry.IsDir() && strings.HasSuffix(path, ".proto") {
			files = append(files, path)
		}
		return err
	})
	return files, err
}

// compileSources returns the descriptors of the sources, comments included.
func compileSources(ctx context.Context, sources []string) (linker.Files, error) {
	linked := protocompile.ResolverFunc(func(path string) (protocompile.SearchResult, error) {
		if path == status.File_google_rpc_status_proto.Path() {
			return protocompile.SearchResult{Desc: status.File_google_rpc_status_proto}, nil
		}
		return protocompile.SearchResult{}, fs.ErrNotExist
	})
	compiler := protocompile.Compiler{
		Resolver: protocompile.WithStandardImports(protocompile.CompositeResolver{
			&protocompile.SourceResolver{},
			linked,
		}),
		SourceInfoMode: protocompile.SourceInfoStandard,
	}
	return compiler.Compile(ctx, sources...)
}

// inOrder returns the files and their imports, each after its own imports, as
// plugins require.
func inOrder(files linker.Files) []*descriptorpb.FileDescriptorProto {
	var ordered []*descriptorpb.FileDescriptorProto
	var add func(protoreflect.FileDescriptor)
	add = func(file protoreflect.FileDescriptor) {
		if slices.ContainsFunc(ordered, func(f *descriptorpb.FileDescriptorProto) bool { return f.GetName() == file.Path() }) {
			return
		}
		for i := range file.Imports().Len() {
			add(file.Imports().Get(i).FileDescriptor)
		}
		ordered = append(ordered, protoutil.ProtoFromFileDescriptor(file))
	}
	for _, file := range files {
		add(file)
	}
	return ordered
}

// runPlugin feeds the request to a plugin and writes the files that it returns.
func runPlugin(ctx context.Context, plugin string, request *pluginpb.CodeGeneratorRequest) error {
	input, err := proto.Marshal(request)
	if err != nil {
		return err
	}
	command := exec.CommandContext(ctx, "go", "tool", plugin)
	command.Stdin = bytes.NewReader(input)
	command.Stderr = os.Stderr
	output, err := command.Output()
	if err != nil {
		return err
	}
	var response pluginpb.CodeGeneratorResponse
	if err := proto.Unmarshal(output, &response); err != nil {
		return err
	}
	if response.Error != nil {
		return errors.New(response.GetError())
	}
	for _, file := range response.File {
		name, content := filepath.FromSlash(file.GetName()), []byte(file.GetContent())
		if before, err := os.ReadFile(name); err == nil && bytes.Equal(before, content) {
			continue // somebody may be compiling it
		}
		if err := os.WriteFile(name, content, 0o644); err != nil {
			return err
		}
	}
	return nil
}
